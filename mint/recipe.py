"""`import mint.recipe as recipe` gives the package `recipe`, as MinT's own scripts spell it."""

import sys

import recipe

sys.modules[__name__] = recipe
