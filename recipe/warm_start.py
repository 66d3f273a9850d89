"""Two stages in a row: a short warm start on right answers, then reinforcement learning from where it led."""

from __future__ import annotations

from pathlib import Path

import chz

import mint
from recipe.rl import train as rl_train
from recipe.supervised import train as sft_train


@chz.chz(typecheck=True)
class Config:
    """Both stages; their own log_path is taken relative to this one's."""

    # Folder of the whole run. Started again on the same folder, it goes on where it stopped.
    log_path: str
    rl: rl_train.Config
    # The warm start; None: reinforcement learning starts from rl.load_checkpoint_path or a new adapter.
    sft: sft_train.Config | None = None


async def main(config: Config, service: mint.ServiceClient | None = None) -> rl_train.RLResult:
    """Run, or go on with, both stages. service: the client to use; None makes one for rl.base_url."""
    root = Path(config.log_path).expanduser()
    client: mint.ServiceClient = service or mint.ServiceClient(base_url=config.rl.base_url)
    rl = chz.replace(config.rl, log_path=str(rl_log_path(config)))
    if config.sft is not None:
        sft = chz.replace(config.sft, log_path=str(root / config.sft.log_path))
        rl = chz.replace(rl, load_checkpoint_path=(await sft_train.main(sft, client)).state_path)
    return await rl_train.main(rl, client)


def rl_log_path(config: Config) -> Path:
    """Where the RL stage of this run leaves its files."""
    return Path(config.log_path).expanduser() / config.rl.log_path
