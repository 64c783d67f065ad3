"""Files of evidence beside a case, each cited with its SHA-256."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from loomrl.evaluation.tables import episodes_table, steps_table, write_table
from loomrl.system.files import canonical_json, read_json, sha256, sha256_file, write_atomic
from loomrl.types import Episode, Evidence, Json

FOLDER = "evidence"


class EvidenceWriter:
    """Writes evidence below a case folder; without a folder it only computes the digests of JSON.

    To make one removes the evidence that a former case left in the folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            shutil.rmtree(folder / FOLDER, ignore_errors=True)

    def json(self, name: str, value: Json) -> Evidence:
        """Write a value to `evidence/NAME.json`, as `document` does; returns the file's place and digest."""
        return self.document(f"{FOLDER}/{name}.json", value)

    def document(self, uri: str, value: Json) -> Evidence:
        """Write canonical JSON at a place relative to the case; returns that place and the file's digest."""
        data = canonical_json(value)
        if self._folder is not None:
            write_atomic(self._folder / uri, data)
        return Evidence(uri=uri, sha256=sha256(data))

    def read(self, evidence: Evidence) -> Json:
        """The value of a file of JSON that was written here; it needs a folder."""
        assert self._folder is not None
        value: Json = read_json(self._folder / evidence.uri)
        return value

    def episode(self, name: str, episode: Episode) -> Evidence | None:
        """Write the steps of one episode to `evidence/NAME.parquet`; returns its place and digest, None without a
        folder."""
        if self._folder is None:
            return None
        return self._table(name, steps_table([episode]))

    def episodes(self, name: str, episodes: Sequence[Episode]) -> Evidence | None:
        """Write seed, return, length and ending of many episodes to `evidence/NAME.parquet`; returns its place and
        digest, None without a folder."""
        if self._folder is None:
            return None
        return self._table(name, episodes_table(episodes, [episode.success for episode in episodes]))

    def _table(self, name: str, table: object) -> Evidence:
        assert self._folder is not None
        uri = f"{FOLDER}/{name}.parquet"
        write_table(self._folder / uri, table)
        return Evidence(uri=uri, sha256=sha256_file(self._folder / uri))
