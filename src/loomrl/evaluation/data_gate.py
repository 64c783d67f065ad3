"""Great Expectations as a gate over evaluation data: `validate(folder)`.

What is expected stands in `loomrl.evaluation.expectations`. The verdict is written without run ids and times, so equal
data give equal bytes.
"""

import os
import warnings
from pathlib import Path
from typing import Any

from pydantic import Field

from loomrl.errors import ArtifactError, GateRefused
from loomrl.evaluation.expectations import Expected, expect_episodes, expect_steps, read_tables
from loomrl.system.schema import Document

VALIDATION = "data_validation.json"


class ExpectationResult(Document):
    """One expectation about one table, and what was found in the table."""

    table: str  # "episodes" or "trajectories"
    kind: str  # Great Expectations' name, such as expect_column_values_to_be_between
    column: str
    statement: str
    success: bool
    observed: str  # in words, for a page
    element_count: int
    unexpected_count: int
    examples: list[str] = Field(default_factory=list)  # up to five unexpected values


class DataValidation(Document):
    """The expectations that evaluation data were checked against, with their results."""

    success: bool
    num_expectations: int
    num_failed: int
    expectations: list[ExpectationResult]

    @property
    def failures(self) -> list[ExpectationResult]:
        """The expectations that the data did not meet."""
        return [result for result in self.expectations if not result.success]


def validate(folder: Path) -> DataValidation:
    """Validate `episodes.parquet` and `trajectories.parquet` of an evaluation folder against `spaces.json`.

    Writes nothing, and raises nothing for data that fail.

    Raises:
        ArtifactError: when a file is missing or not Parquet, or Great Expectations cannot examine a column.
        ConfigError: for spaces that are not of numbers.
    """
    tables = read_tables(folder)
    context = _context()
    results = []
    for name, frame, expected in (
        ("episodes", tables.episodes, expect_episodes(tables)),
        ("trajectories", tables.steps, expect_steps(tables)),
    ):
        results += _validate_table(context, name, frame, expected)
    failed = sum(not result.success for result in results)
    return DataValidation(
        success=failed == 0 and bool(results),
        num_expectations=len(results),
        num_failed=failed,
        expectations=results,
    )


def require_valid(validation: DataValidation, folder: Path) -> None:
    """Raise `GateRefused`, naming the first failures, when the data did not validate."""
    if validation.success:
        return
    shown = "; ".join(
        f"{result.table}.{result.column}: {result.statement}: {result.observed}" for result in validation.failures[:3]
    )
    raise GateRefused(
        f"the data gate refused the evaluation data in {folder}: {validation.num_failed} of "
        f"{validation.num_expectations} expectations failed: {shown}; all verdicts are in {folder / VALIDATION}"
    )


def _context() -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():  # Great Expectations imports the deprecated sre_constants
        warnings.simplefilter("ignore", DeprecationWarning)
        import great_expectations
        from great_expectations.data_context.types.base import (
            DataContextConfig,
            InMemoryStoreBackendDefaults,
            ProgressBarsConfig,
        )

        config = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
            progress_bars=ProgressBarsConfig(globally=False),
            analytics_enabled=False,
        )
        return great_expectations.get_context(project_config=config, mode="ephemeral")


def _validate_table(context: Any, name: str, frame: Any, expected: list[Expected]) -> list[ExpectationResult]:
    import great_expectations as gx
    import great_expectations.expectations as kinds

    asset = context.data_sources.add_pandas(name).add_dataframe_asset(name)
    batch = asset.add_batch_definition_whole_dataframe(name).get_batch({"dataframe": frame})
    suite = gx.ExpectationSuite(
        name=name,
        expectations=[
            getattr(kinds, each.kind)(**each.arguments, meta={"index": index}) for index, each in enumerate(expected)
        ],
    )
    outcome = batch.validate(suite, result_format={"result_format": "BASIC", "partial_unexpected_count": 5})
    found = {result.expectation_config.meta["index"]: result for result in outcome.results}
    return [_result(name, each, found[index]) for index, each in enumerate(expected)]


def _result(table: str, expected: Expected, outcome: Any) -> ExpectationResult:
    if raised := _raised(outcome.exception_info):
        raise ArtifactError(f"Great Expectations could not examine {table}.{expected.column}: {raised}")
    details = outcome.result
    count = int(details.get("element_count", 0))
    unexpected = int(details.get("unexpected_count", 0 if outcome.success else 1))
    return ExpectationResult(
        table=table,
        kind=outcome.expectation_config.type,
        column=expected.column,
        statement=expected.statement,
        success=bool(outcome.success),
        observed=_observed(bool(outcome.success), count, unexpected),
        element_count=count,
        unexpected_count=unexpected,
        examples=[str(value) for value in details.get("partial_unexpected_list", [])],
    )


def _raised(exception_info: dict[str, Any]) -> str | None:
    """The message of an exception inside an expectation; Great Expectations nests it by metric."""
    parts = exception_info.values() if "raised_exception" not in exception_info else [exception_info]
    messages = [part["exception_message"] for part in parts if part["raised_exception"]]
    return messages[0] if messages else None


def _observed(success: bool, count: int, unexpected: int) -> str:
    if not count:
        return "as expected" if success else "missing"
    return f"all {count} rows" if success else f"{unexpected} of {count} rows do not"
