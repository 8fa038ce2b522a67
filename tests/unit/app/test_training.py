"""What TrainingJobs learn of the accounts at clouds."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from skysail.app.training import TrainingModule
from skysail.base.settings import Settings
from skysail.claims.tracking.volume_deletions import VolumeDeletions
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.ledger import Ledger
from skysail.cloud.simulated.vendors import MODAL
from skysail.kinds.training.children.progress_endpoint import TrainingConfig
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World


def config(**accounts: SimulatedAccount) -> TrainingConfig:
    module = TrainingModule(
        Client(ApiModel(World(), "operator")),
        Settings(progress_port=0),
        recorder=None,  # type: ignore[arg-type]
        authority=lambda: b"",
        serves=lambda _: False,
        rng=random.Random(0),
    )
    module.connect(VolumeDeletions(accounts, lambda: datetime.now(UTC)), accounts)
    return module._config()


async def test_configured_cloud_without_an_account_is_a_missing_account():
    account = SimulatedAccount(MODAL, Ledger(), now=lambda: 0.0)
    try:
        known = config(modal=account)
    finally:
        await account.close()
    assert (known.deletable_volumes, known.missing_accounts) == ({"modal"}, {"runpod"})
    unread = config()
    assert (unread.deletable_volumes, unread.missing_accounts) == (frozenset(), {"modal", "runpod"})
