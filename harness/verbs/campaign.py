"""`attnproof campaign`: verify for hours on many machines, and go on where it was ended."""

from __future__ import annotations

import datetime
import hashlib
import os
import secrets
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from attnproof import __version__
from attnproof.harness.backports import UTC
from attnproof.harness.campaign.driver import Aim, Driver
from attnproof.harness.campaign.examples import FOLDER
from attnproof.harness.campaign.ledger import SCHEMA, CampaignLedger
from attnproof.harness.campaign.pool import Pool
from attnproof.harness.campaign.ray_pool import RayPool, require_ray
from attnproof.harness.campaign.records import Begun, Pair
from attnproof.harness.guard import attempt
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.files import read_regular
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import version_of
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.own_operations import use_operations
from attnproof.harness.running.parent.plan import Plan, probe, with_interpreted
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.verbs.campaign_progress import CampaignProgress
from attnproof.harness.verbs.campaign_report import campaign_run, skip_of, write_cases
from attnproof.harness.verbs.checks import check_run
from attnproof.harness.verbs.closing_summary import closing_summary
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import CampaignOptions, VerifyOptions
from attnproof.harness.verbs.output import Output
from attnproof.harness.verbs.selection import pick_operations
from attnproof.harness.verbs.verification import exit_code, pick_candidates

_MOST_HOURS = 10_000
PoolMaker = Callable[[str, int, Path], Pool]
"""Function from address, jobs and the folder of the example database to workers."""


@interrupt.restored_handlers()
def campaign(
    options: CampaignOptions, *, command: str = "attnproof campaign", make_pool: PoolMaker = RayPool
) -> int:
    """Work until time or tasks are up, write the report, return the exit code of `verify`.

    Raise UsageError before anything runs, InfrastructureError if there are no workers.
    """
    verify_options = _verify_options(options)
    _check(options, verify_options)
    require_ray()
    plan = _plan(options, verify_options)
    output = Output(options.out)
    try:
        driver, interrupted = _work(options, plan, make_pool)
        run = campaign_run(driver, plan, verify_options, command, interrupted=interrupted)
        write_cases(driver, output.scratch)
    except BaseException:
        output.discard()
        raise
    place = output.finish(run, plan.candidates)
    words = partial(closing_summary, run, place)
    say(attempt("the summary", words, lambda fault: f"{fault}\n{run.verdict}"))
    return exit_code(run)


def _work(options: CampaignOptions, plan: Plan, make_pool: PoolMaker) -> tuple[Driver, bool]:
    """Return the driver of a campaign that has ended, and True if it was interrupted."""
    examples = options.out / FOLDER
    with closing(CampaignLedger(options.out, _begun(options, plan))) as ledger:
        seed = _check_same(ledger.begun, options, plan)
        aim = _aim(options, plan, seed)
        progress = CampaignProgress()
        with closing(make_pool(options.address, plan.jobs, examples)) as pool:
            driver = Driver(aim, ledger, examples, pool, progress.on_line, progress.tick)
            progress.begin(driver)
            interrupt.watch()
            return driver, driver.work()


def _verify_options(options: CampaignOptions) -> VerifyOptions:
    """Return the options of the run that a campaign's tasks add up to."""
    names = (
        *("candidates", "device", "out", "contract", "fail_on", "interface", "timeout_s", "ops"),
        *("jobs", "memory_gib", "examples", "seed", "deviations", "definitions", "stub"),
    )
    return VerifyOptions(**{name: getattr(options, name) for name in names})


def _check(options: CampaignOptions, verify_options: VerifyOptions) -> None:
    """Raise UsageError for a value out of range, or the name of no operation."""
    if not 0 < options.hours <= _MOST_HOURS:
        raise UsageError(
            f"--hours is {options.hours:g}, expected more than 0 and at most {_MOST_HOURS:,}"
        )
    if options.tasks < 0:
        raise UsageError(f"--tasks is {options.tasks}, expected a number of at least 0")
    check_run(verify_options)
    use_operations(options.definitions)
    pick_operations(options.ops)


def _plan(options: CampaignOptions, verify_options: VerifyOptions) -> Plan:
    """Return operations, candidates and settings (UsageError)."""
    operations, candidates = pick_operations(options.ops), pick_candidates(verify_options)
    if not verify_options.candidates:  # a GPU of this machine adds its own
        candidates = [candidate for candidate in candidates if candidate.device == "cpu"]
    for candidate in candidates:
        if candidate.device != "cpu":
            raise UsageError(
                f"candidate {candidate.name} is on {candidate.lane}: campaigns run on CPU tensors"
            )
    settings = Settings(
        examples=options.examples,
        timeout_s=options.timeout_s,
        memory_bytes=int(options.memory_gib * 2**30),
        usual_depth=False,
        minimise_known=False,
    )
    probed = probe(candidates, operations, settings)
    candidates = with_interpreted(probed) if options.device == "auto" else probed.candidates
    jobs = options.jobs or len(os.sched_getaffinity(0))
    return Plan(operations, candidates, settings, [], [], jobs, probed.lacking)


def _aim(options: CampaignOptions, plan: Plan, seed: int) -> Aim:
    pairs = {
        Pair(operation.name, candidate.name): (operation, candidate.judging(operation.name))
        for candidate in plan.candidates
        for operation in plan.operations
        if skip_of(operation, candidate, plan) is None
    }
    settings = msgspec.structs.replace(plan.settings, seed=seed)
    return Aim(pairs, settings, 3600 * options.hours, options.tasks)


def _begun(options: CampaignOptions, plan: Plan) -> Begun:
    """Return the first line of a new campaign's ledger."""
    return Begun(
        schema=SCHEMA,
        seed=secrets.randbelow(2**31) if options.seed is None else options.seed,
        started=datetime.datetime.now(UTC).isoformat(timespec="seconds"),
        options={
            "attnproof": __version__,
            "candidates": ", ".join(map(_described, plan.candidates)),
            "operations": ", ".join(operation.name for operation in plan.operations),
            "--examples": str(options.examples),
            "--timeout": f"{options.timeout_s:g}",
            "--memory": f"{options.memory_gib:g}",
        },
    )


def _described(candidate: Candidate) -> str:
    """Return what a candidate's results depend on, its source as a hash."""
    path = Path(candidate.target)
    source = version_of(candidate)
    if path.is_absolute():
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        text = b"".join(read_regular(file) for file in files)
        source = hashlib.blake2b(text, digest_size=6).hexdigest()
    kinds = "+".join(sorted(candidate.judged))
    shown = (candidate.name, source, candidate.lane, candidate.interface, candidate.stub, kinds)
    return " ".join(filter(None, (*shown, *candidate.deviations)))


def _check_same(begun: Begun, options: CampaignOptions, plan: Plan) -> int:
    """Return the seed of the campaign that the folder has (UsageError if it is another one)."""
    ours = _begun(options, plan).options
    seed = begun.seed if options.seed is None else options.seed
    pairs = {name: (begun.options.get(name, ""), ours[name]) for name in ours}
    pairs["--seed"] = str(begun.seed), str(seed)
    for name, (theirs, own) in pairs.items():
        if theirs != own:
            raise UsageError(
                f"--out {options.out} has a campaign of other options: {name} was {theirs}, now "
                f"{own}; give the same, or name another folder"
            )
    return seed
