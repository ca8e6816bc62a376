"""The keys of `[fleet]`. Data only."""

from __future__ import annotations

from ..core.keys import Key

ON_LOSS = ("fail", "retry")

FLEET_KEYS: tuple[Key, ...] = (
    Key("fleet.replicas", "int", 1, "engines", "of this configuration, behind router.policy", low=1, high=4096),
    Key("fleet.group", "tables", [], "", "[[fleet.group]]: replicas = n, name, and keys that are its own"),
    Key("fleet.event", "tables", [], "", "[[fleet.event]]: at_s, engine, kind = restart, drain, add or slow; see docs"),
    Key("fleet.on_loss", "choice", "fail", "", "requests of an engine that restarts: fail, or sent again", ON_LOSS),
)
