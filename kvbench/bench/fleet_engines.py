"""The engines of a fleet as systems of their own, the router in front of them, and what only a fleet's record shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..routing.settings import RouterSettings, check_router
from .fleet import groups_of, is_fleet, set_by_hand, without_fleet
from .pair_engines import pair_fleet, with_pairs
from .step_times import step_costs
from .system import System, build_system

if TYPE_CHECKING:
    from ..cluster.fleet import Fleet
    from ..cluster.simulation import Simulation
    from ..core.journal import Journal
    from ..core.requests import Requests
    from ..report.record import RunRecord


def fleet_of(system: System, requests: Requests) -> Fleet | None:
    """The engines and their router, or None where there is one engine and no router."""
    config = system.asked
    if (paired := pair_fleet(system)) is not None:
        return paired
    if not is_fleet(config):
        return None
    from ..cluster.fleet import Fleet, Member
    from ..cluster.incidents import read_incidents
    from ..core.requests import NONE

    router = RouterSettings(**config.section("router"))
    own = {name: config.where[f"router.{name}"] for name in set_by_hand(config)}
    check_router(router, own, bool((requests.session_id != NONE).any()), config["block_tokens"])
    if router.seed < 0:
        router = replace(router, seed=config["seed"])
    members, ranks = [], config["dp"]
    for group in groups_of(config):
        engine = build_system(without_fleet(group.config), system.settings.record_steps)
        member = Member(engine.settings, step_costs(engine).tables, group.name)
        members += [member] * (group.replicas * ranks)
    incidents = read_incidents(config["fleet.event"], len(members) // ranks)
    again = config["fleet.on_loss"] == "retry"
    return Fleet(tuple(members), router, ranks=ranks, incidents=incidents, sends_again=again)


def with_fleet(record: RunRecord, simulation: Simulation, journal: Journal) -> RunRecord:
    """The record with what only a fleet shows."""
    fleet = simulation.fleet
    if fleet.pairs is not None:
        return with_pairs(record, simulation, journal)
    if fleet.router is None:
        return record
    from ..metrics.fleet import fleet_figures
    from ..report.fleet_table import fleet_scalars, fleet_section

    figures = fleet_figures(
        journal,
        simulation.requests,
        simulation.counters_by_engine(),
        [member.group for member in fleet.instances],
        simulation.first_keys(),
    )
    summary = replace(record.summary, scalars=record.summary.scalars | fleet_scalars(figures))
    return replace(record, summary=summary, sections=(*record.sections, fleet_section(figures, fleet.router.policy)))
