"""What runs in the interpreters that hold untrusted programs: the standard library only, and relative imports only.

The trainer starts these modules by their folder, without site-packages: nothing of the project is loaded beside them.
"""
