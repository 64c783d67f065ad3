"""The report of a run: complete, self-contained, escaped, and right when artifacts change."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loomrl.errors import ConfigError
from loomrl.evaluation.data_gate import DataValidation
from loomrl.evaluation.evaluate import evaluation_digest
from loomrl.runs.report.build import build_report, is_current
from loomrl.runs.report.document import RunReport
from loomrl.storage.run_record import RunRecord, StageRecord, run_folder, write_run
from loomrl.system.files import digest_folder, write_atomic
from loomrl.types import ClaimLabel, EvaluationReport, GateDecision, LabelKind, SafetyCase, TextSample

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Parses a page strictly: every element closed in order; collects attributes, ids and visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]

    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def built(run_id: str, project: Path) -> tuple[Page, RunReport]:
    path = build_report(run_id, project)
    return Page(path.read_text()), RunReport.read(path.with_name("report.json"))


def test_whole_run_shows_every_section(make_run, project) -> None:
    page, report = built(make_run().run_id, project)
    words = page.words()
    for expected in (
        "Promoted",
        "version 3",
        "498.2",
        "95 % interval 495.7 to 500",
        "P(an episode violates pole_stays_up) is at most 0.01",
        "0.0093",
        "1.6e−7",
        "98.2 %",
        "the paired mean return is not below the champion's",
        "1 min 14 s",
        "training.seed",
        "410 µs",
    ):
        assert expected in words
    assert [stage.status for stage in report.stages] == ["ran"] * 7
    assert all(stage.missing_because is None for stage in report.stages)
    assert report.outcome.champion_before == "2"
    assert report.outcome.champion_after == "3"
    assert [curve.title for curve in report.curves] == ["Episode return", "Entropy", "Approximate KL", "Value loss"]
    assert all(link.holds for link in report.chain)
    assert len(report.chain) == 8


def test_the_worst_of_what_followed_is_shown_with_state_actions_and_outcomes(make_run, project) -> None:
    page, _ = built(make_run().run_id, project)
    words = page.words()
    for told in ("What followed", "6000014, 9", "-0.949", "1.405", "pole_stays_up", "failed in 71", "held for 4 steps"):
        assert told in words, told


def test_json_holds_the_facts_and_validates(make_run, project) -> None:
    record = make_run()
    path = build_report(record.run_id, project).with_name("report.json")
    report = RunReport.read(path)
    assert report.run == record
    assert report.to_bytes() == path.read_bytes()
    assert report.evaluation is not None
    assert report.evaluation.interquartile_mean_return.estimate == 498.2
    assert report.manifest is not None
    assert report.manifest.probe_observations == []
    assert "record.json" in report.files
    assert RunReport.model_json_schema()["title"] == "RunReport"


def test_page_needs_nothing_from_outside(make_run, project) -> None:
    path = build_report(make_run().run_id, project)
    html = path.read_text()
    page = Page(html)
    assert "script" not in page.tags
    for source in page.values("src"):
        assert source.startswith("data:image/")
    for tag, name, value in page.attributes:
        if name == "href":
            assert value.startswith(("#", "data:")) or "/" not in value, (tag, value)
    assert not {name for _, name, _ in page.attributes} & {"srcset", "background", "action", "poster", "data", "style"}
    css = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in css
    assert "@import" not in css
    assert all(value == "url(#arrow)" for _, name, value in page.attributes if "url(" in value)
    policy = next(value for value in page.values("content") if "default-src" in value)
    assert policy.startswith("default-src 'none'")


def test_page_is_accessible(make_run, project) -> None:
    page, _ = built(make_run().run_id, project)
    assert page.tags.count("h1") == 1
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    references = [one for value in page.values("aria-labelledby") for one in value.split()]
    assert references
    assert set(references) <= set(ids)
    targets = [value[1:] for value in page.values("href") if value.startswith("#")]
    assert set(targets) <= set(ids)
    images = page.tags.count("img")
    assert images == 2
    assert len([alt for alt in page.values("alt") if len(alt) > 20]) == images
    assert "lang" in {name for tag, name, _ in page.attributes if tag == "html"}


def test_everything_is_escaped(make_run, project) -> None:
    evil = "</pre></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'"
    record = make_run(config={"name": evil}, overrides={evil: evil}, message=evil, git_commit=evil, mlflow_run_id=evil)
    stages = [stage.model_copy(update={"verdict": evil, "status": evil}) for stage in record.stages]
    write_run(record.model_copy(update={"stages": stages, "version": evil}))
    page, report = built(record.run_id, project)
    assert "script" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.words()
    assert report.run.message == evil


def test_what_a_language_policy_was_asked_and_answered_is_shown(make_run, project) -> None:
    run = make_run()
    stages = project / "artifacts" / "cartpole"
    evaluation, safety = stages / "evaluation" / "evaluation.json", stages / "safety" / "case.json"
    samples = [
        TextSample(seed=1, prompt="12+34=", answer="46", episode_return=475.0),
        TextSample(seed=2, prompt="<b>1+1=", answer="3", episode_return=0.0),
    ]
    EvaluationReport.read(evaluation).model_copy(update={"samples": samples}).write(evaluation)
    because = {"robustness": "observations are texts"}
    SafetyCase.read(safety).model_copy(update={"not_applicable": because}).write(safety)
    record_digests(run, stages)
    words = built(run.run_id, project)[0].words()
    assert "1 12+34= 46 ✓ right 475 2 <b>1+1= 3 ✕ wrong 0" in words
    assert "Checks that do not apply here robustness observations are texts" in words
    EvaluationReport.read(evaluation).model_copy(update={"reward_threshold": None}).write(evaluation)
    record_digests(run, stages)
    assert "1 12+34= 46 475 2 <b>1+1= 3 0" in built(run.run_id, project)[0].words()  # nobody said what is right


def record_digests(run: RunRecord, stages: Path) -> None:
    """The run is that of the artifacts as they are now."""
    recorded = [stage.model_copy(update={"digest": digest_folder(stages / stage.name)}) for stage in run.stages[:5]]
    write_run(run.model_copy(update={"stages": [*recorded, *run.stages[5:]]}))


def test_report_stays_right_when_artifacts_change(make_run, project) -> None:
    record = make_run()
    _, before = built(record.run_id, project)
    shutil.rmtree(project / "artifacts")
    page, after = built(record.run_id, project)
    assert after.model_copy(update={"written": before.written}) == before
    assert page.tags.count("img") == 2


def test_artifacts_of_another_run_are_not_shown(make_run, project) -> None:
    record = make_run()
    write_atomic(project / "artifacts/cartpole/evaluation/episode.gif", b"another run's")
    page, report = built(record.run_id, project)
    assert report.evaluation is None
    assert "artifacts/cartpole/evaluation now holds another run's output" in page.words()
    assert "498.2" not in page.words().replace("interquartile mean 498.2", "")
    assert report.safety is not None


def test_refused_run_shows_the_refuted_claim_and_how_to_replay_it(make_run, project, refuted) -> None:
    folder = project / "artifacts/cartpole/safety"
    case = SafetyCase.read(folder / "case.json")
    decision = GateDecision(passed=False, blocking=[refuted.id], reason="1 mandatory claim is refuted")
    case.model_copy(update={"claims": [refuted], "decision": decision}).write(folder / "case.json")
    record = make_run(state="refused", version=None, shadow=None, decision=None, message="the safety case is blocked")
    stages = [stage for stage in record.stages if stage.name in ("environment", "training", "evaluation", "safety")]
    refusal = StageRecord(name="export", status="refused", seconds=1.0, verdict="blocked: limits.pole_stays_up")
    shutil.rmtree(project / "artifacts/cartpole/export")
    write_run(record.model_copy(update={"stages": [*stages, refusal]}))
    page, report = built(record.run_id, project)
    words = page.words()
    assert "Refused" in words
    assert "loomrl safety replay cartpole --seed 2000007" in words
    assert "The stage was refused and left no files." in words
    assert "The run ended as “refused” before this stage." in words
    assert "version 2 untouched by this run" in words
    assert [stage.status for stage in report.stages[4:]] == ["refused", "not reached", "not reached"]


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_run_that_stopped_before_its_safety_case_shows_what_its_evaluation_measured(
    make_run, project, is_copied
) -> None:
    folder = project / "artifacts/cartpole/evaluation"
    write_atomic(folder / "trajectories.parquet", b"steps")  # not shown, so that no copy holds it
    expected = evaluation_digest(folder)
    record = make_run(state="failed", version=None, shadow=None, decision=None, message="safety: out of memory")
    write_run(record.model_copy(update={"stages": record.stages[:3]}))
    if is_copied:  # as a run does that gets as far as its end
        shutil.copytree(project / "artifacts", run_folder(record.run_id) / "artifacts")
    _, report = built(record.run_id, project)
    assert report.safety is None
    assert report.digests["evaluation data"] == expected
    shutil.rmtree(project / "artifacts")
    assert built(record.run_id, project)[1].digests["evaluation data"] == expected


def test_run_that_failed_at_once(make_run, project) -> None:
    record = make_run(state="failed", stages=[], version=None, champion_before=None, shadow=None, decision=None,
                      git_commit=None, finished=None, message="constraints.txt is missing")  # fmt: skip
    page, report = built(record.run_id, project)
    assert {stage.status for stage in report.stages} == {"not reached"}
    assert all(stage.missing_because for stage in report.stages)
    assert "constraints.txt is missing" in page.words()
    assert "none yet" in page.words()


@pytest.mark.parametrize(
    ("stage", "name", "content"),
    [
        ("training", "curves.json", b'{"updates": 3}'),
        ("training", "training.json", b"{torn"),
        ("evaluation", "evaluation.json", b"[]"),
        ("safety", "case.json", b'{"claims": 1}'),
        ("export", "parity.json", b"\xff"),
    ],
)
def test_broken_documents_are_named(make_run, project, stage: str, name: str, content: bytes) -> None:
    write_atomic(project / "artifacts/cartpole" / stage / name, content)
    page, report = built(make_run().run_id, project)
    because = next(row.missing_because for row in report.stages if row.name == stage)
    assert because is not None
    assert because.startswith(f"{name} cannot be read")
    assert name in page.words()


def test_evaluation_cannot_name_a_file_elsewhere(make_run, project, tmp_path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    evaluation = project / "artifacts/cartpole/evaluation/evaluation.json"
    write_atomic(evaluation, evaluation.read_bytes().replace(b'"returns.png"', b'"../../../../secret.png"'))
    _, report = built(make_run().run_id, project)
    assert [picture.name for picture in report.pictures] == ["episode.gif"]


def test_broken_chain_is_shown(make_run, project) -> None:
    folder = project / "artifacts/cartpole/safety"
    case = SafetyCase.read(folder / "case.json")
    case.model_copy(update={"policy_digest": "0" * 64}).write(folder / "case.json")
    page, report = built(make_run().run_id, project)
    broken = [link.statement for link in report.chain if not link.holds]
    assert broken == ["The safety case is about this trained policy", "The manifest quotes this safety case"]
    assert "6 of 8 links hold" in page.words()


def test_unknown_run_is_named(loomrl_home, project) -> None:
    with pytest.raises(ConfigError, match="no run 'nonsense'"):
        build_report("nonsense", project)


def test_a_newer_record_makes_the_report_stale(make_run, project) -> None:
    import os

    record = make_run()
    assert not is_current(record.run_id)
    build_report(record.run_id, project)
    assert is_current(record.run_id)
    path = run_folder(record.run_id) / "record.json"
    os.utime(path, (path.stat().st_atime + 60, path.stat().st_mtime + 60))
    assert not is_current(record.run_id)


def test_evidence_is_copied_whole_and_only_what_is_shown(make_run, project) -> None:
    source = project / "artifacts/cartpole/evaluation"
    (source / "trajectories.parquet").write_bytes(b"large")
    record = make_run()
    build_report(record.run_id, project)
    kept = run_folder(record.run_id) / "evidence" / f"evaluation-{digest_folder(source)[:16]}"
    names = {path.name for path in kept.iterdir()}
    assert names == {"evaluation.json", "data_validation.json", "returns.png", "episode.gif", "SHA256SUMS"}


def test_the_runs_own_copy_of_the_artifacts_comes_first(make_run, project) -> None:
    record = make_run()
    shutil.copytree(project / "artifacts", run_folder(record.run_id) / "artifacts")
    shutil.rmtree(project / "artifacts")
    _, report = built(record.run_id, project)
    assert all(stage.missing_because is None for stage in report.stages)
    assert not (run_folder(record.run_id) / "evidence").exists()


def test_what_a_failed_stage_left_is_not_shown(make_run, project) -> None:
    record = make_run(state="failed", message="ArtifactError: disk full", shadow=None, decision=None, version=None)
    failed = StageRecord(name="evaluation", status="failed", seconds=2.0, verdict="ArtifactError: disk full")
    write_run(record.model_copy(update={"stages": [*record.stages[:2], failed]}))
    page, report = built(record.run_id, project)
    assert report.training is not None
    assert report.evaluation is None
    assert "The stage failed; what it left is not evidence." in page.words()


def test_data_gates_refusal_shows_what_it_found(make_run, project) -> None:
    folder = project / "artifacts/cartpole/evaluation"
    validation = DataValidation.read(folder / "data_validation.json")
    failed = validation.expectations[0].model_copy(
        update={"success": False, "observed": "2 of 100 rows do not", "unexpected_count": 2, "examples": ["1000007"]}
    )
    validation.model_copy(update={"success": False, "num_failed": 1, "expectations": [failed]}).write(
        folder / "data_validation.json"
    )
    record = make_run(state="refused", shadow=None, decision=None, version=None, message="the data gate refused")
    refused = StageRecord(name="evaluation", status="refused", seconds=2.0, verdict="the data gate refused")
    write_run(record.model_copy(update={"stages": [*record.stages[:2], refused]}))
    page, _ = built(record.run_id, project)
    assert "0 of 1 expectations" in page.words()
    assert "2 of 100 rows do not for example 1000007" in page.words()


def test_gravest_claims_come_first(make_run, project, refuted) -> None:
    folder = project / "artifacts/cartpole/safety"
    case = SafetyCase.read(folder / "case.json")
    case.model_copy(update={"claims": [*case.claims[1:], refuted]}).write(folder / "case.json")
    page, _ = built(make_run(shadow=None, decision=None).run_id, project)
    words = page.words()
    assert words.index("limits.pole_stays_up") < words.index("bounds.action")


def test_digests_in_sentences_are_shortened_with_the_whole_in_the_title(make_run, project) -> None:
    digest = "0123456789abcdef" * 4
    record = make_run(state="refused", message=f"policy {digest} <b>differs</b>")
    page, _ = built(record.run_id, project)
    assert "policy 0123456789ab… <b>differs</b>" in page.words()
    assert digest in page.values("title")
    assert "b" not in page.tags


@pytest.mark.parametrize(
    ("state", "before", "expected", "after"),
    [
        ("promoted", "2", "Version 3 replaces version 2 as champion.", "3"),
        ("promoted", None, "Version 3 is the first champion.", "3"),
        ("unchanged", "3", "Version 3 stays champion", "3"),
        ("waiting", "2", "loomrl policy approve 20261120-093015-3f9a1c", "2"),
        ("refused", "2", "agreement is too low", "2"),
        ("crashed", None, "agreement is too low", None),
    ],
)
def test_outcome_in_a_sentence(make_run, project, state, before, expected, after) -> None:
    record = make_run(state=state, champion_before=before, message="agreement is too low")
    _, report = built(record.run_id, project)
    assert expected in report.outcome.sentence
    assert report.outcome.champion_after == after


def test_what_claims_of_shadow_and_rules_rest_on_is_shown_and_older_ones_go_without(make_run, project) -> None:
    record = make_run()
    shadow, decision = record.shadow, record.decision
    before, report = built(record.run_id, project)
    assert "Not established" not in before.words()
    said = {"examined": "4870 decisions", "not_established": "other traffic", "false_if": "one that differs"}
    shadow = shadow.model_copy(update={"claims": [shadow.claims[0].model_copy(update=said)]})
    said |= {"examined": "the case's signature"}
    decision = decision.model_copy(update={"rules": [decision.rules[0].model_copy(update=said)]})
    page, report = built(make_run(shadow=shadow, decision=decision).run_id, project)
    for examined in ("4870 decisions", "the case's signature"):
        assert f"Examined {examined} Not established other traffic False if one that differs" in page.words()
    assert report.run.shadow.claims[0].examined == "4870 decisions"


def test_what_a_claim_rests_on_is_shown_and_a_label_takes_it_out_of_the_count(make_run, project) -> None:
    folder = project / "artifacts/cartpole/safety"
    case = SafetyCase.read(folder / "case.json")
    label = ClaimLabel(kind=LabelKind.REPEATS, reason="both end the episode", claim="limits.cart")
    said = {"examined": "384 episodes", "not_established": "rarer failures", "false_if": "13 failures", "label": label}
    first = case.claims[0].model_copy(update=said)
    case.model_copy(update={"claims": [first, *case.claims[1:]]}).write(folder / "case.json")
    page, report = built(make_run(shadow=None, decision=None).run_id, project)
    words = page.words()
    assert "Examined 384 episodes Not established rarer failures False if 13 failures" in words
    assert "not counted: repeats another limits.cart : both end the episode" in words
    assert f"{len(case.claims) - 1} of {len(case.claims) - 1} claims hold (1 repeats another)" in words
    assert report.safety.claims[0].label == label
