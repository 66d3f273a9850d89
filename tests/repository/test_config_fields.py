from __future__ import annotations

from tests.repository.config_fields import GOLDEN, config_classes, config_fields


def test_a_changed_setting_is_a_visible_decision() -> None:
    recorded, current = GOLDEN.read_text(encoding="utf-8").splitlines(), config_fields().splitlines()
    added, dropped = sorted(set(current) - set(recorded)), sorted(set(recorded) - set(current))
    assert (added, dropped) == ([], []), "meant? record it: python -m tests.repository.config_fields"
    assert current == recorded


def test_the_record_covers_the_configs_of_all_stages() -> None:
    stages = {"recipe.supervised.train.Config", "recipe.preference.train.Config", "recipe.rl.config.Config"}
    assert stages <= config_classes().keys()
    assert "recipe.rl.config.Config.learning_rate: float" in config_fields().splitlines()
