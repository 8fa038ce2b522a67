"""Policies and money of one namespace, as the plan of a claim sees them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skysail.claims.limits.offload_policy import OffloadPolicy
from skysail.claims.limits.spend_account import SpendAccount


class SpendingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Policies, labels and account of the namespace of a claim.

    `account`: None if the namespace has no account yet. `unknown_account`: why the account is not known, as a sentence;
    empty if it is known. `unknown_policies`: the same for policies and labels.
    `gpu_aliases`: other names of the GPU types of the claim's candidates, by the cloud's name.
    """

    unknown_account: str = ""
    unknown_policies: str = ""
    policies: tuple[OffloadPolicy, ...] = ()
    namespace_labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    account: SpendAccount | None = None
    gpu_aliases: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
