"""Datasets of problems that are generated: so many batches to train on, so many problems to test on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import chz

from envs.group_dataset import GroupDataset, check_group_size
from envs.types import EnvGroupBuilder, RLDatasetBuilder
from mint.errors import InvalidRequest
from renderers import Renderer, get_renderer


@chz.chz(typecheck=True)
class GeneratedDatasetBuilder(RLDatasetBuilder):
    """Groups of generated problems, a subclass says which."""

    # Whose tokenizer to render with.
    model_name: str
    # One of renderers.get_renderer's names.
    renderer_name: str
    # Episodes per problem.
    group_size: int
    # Problems per batch.
    groups_per_batch: int
    # Batches to train on.
    num_batches: int
    # Problems to test on, one episode each; 0: no test set.
    num_test_problems: int = 0
    # Of the problems drawn.
    seed: int = 0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check_sizes(self) -> None:
        check_group_size(self.group_size)
        self.check_least(groups_per_batch=1, num_batches=1, num_test_problems=0)

    def check_least(self, **least: int) -> None:
        """InvalidRequest where a field is below its least value."""
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must be at least {value}")

    @abstractmethod
    def make_groups(
        self, num_problems: int, renderer: Renderer, group_size: int, *, is_test: bool
    ) -> Sequence[EnvGroupBuilder]:
        """So many problems of the training or of the test split, which share none, as groups; the same for `seed`."""

    async def __call__(self) -> tuple[GroupDataset, GroupDataset | None]:
        """See RLDatasetBuilder."""
        from mint.tokenizer import load_tokenizer

        renderer = get_renderer(self.renderer_name, load_tokenizer(self.model_name))
        num_problems = self.num_batches * self.groups_per_batch
        train = self.make_groups(num_problems, renderer, self.group_size, is_test=False)
        test = None
        if self.num_test_problems > 0:
            groups = self.make_groups(self.num_test_problems, renderer, 1, is_test=True)
            test = GroupDataset(groups, self.groups_per_batch)
        return GroupDataset(train, self.groups_per_batch), test
