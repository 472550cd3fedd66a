import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.errors import OutputFileError, UsageError
from clients.output import PartFile, part_file


def result(identifier: str) -> bytes:
    return json.dumps({"id": identifier, "ranking": [{"index": 0}]}).encode() + b"\n"


def test_the_target_appears_only_when_all_is_written(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with PartFile(target) as part:
        part.open()
        part.write(b"a\n")
        assert not target.exists()
        part.commit()
    assert target.read_bytes() == b"a\n"
    assert list(tmp_path.iterdir()) == [target]


def write_and_fail(part: PartFile, *lines: bytes) -> None:
    with part:
        part.open()
        for line in lines:
            part.write(line)
        raise InterruptedError


def test_a_failure_leaves_the_target_as_it_was_and_the_part_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old\n")
    part = PartFile(target)
    with pytest.raises(InterruptedError):
        write_and_fail(part, b"new\n")
    assert (target.read_bytes(), part.path.read_bytes()) == (b"old\n", b"new\n")


def test_a_failure_before_the_first_line_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        write_and_fail(PartFile(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_stops_half_way_leaves_whole_lines(tmp_path: Path) -> None:
    class FullDisk(PartFile):
        """A part file on a disk that is full after three bytes of its second line."""

        def write(self, lines: bytes) -> None:
            if self._size:
                assert self._file is not None
                self._file.write(lines[:3])
                raise OSError(28, "No space left on device")
            super().write(lines)

    part = FullDisk(tmp_path / "out")
    with pytest.raises(OSError, match="No space left"):
        write_and_fail(part, b"whole\n", b"second\n")
    assert part.path.read_bytes() == b"whole\n"


def test_whole_lines_leave_out_a_half_line(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "out")
    part.path.write_bytes(result("a") + result("b") + result("c")[:-1])
    ends = [(line.utterance_id, end) for line, end in part.whole_lines()]
    assert ends == [("a", len(result("a"))), ("b", 2 * len(result("a")))]


def test_a_whole_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "out")
    part.path.write_bytes(result("a") + b"{}\n")
    with pytest.raises(OutputFileError, match=r"out\.part:2: no result"):
        list(part.whole_lines())


def test_writing_goes_on_after_what_is_kept(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "out")
    part.path.write_bytes(b"a\nb\nhal")
    with part:
        part.open(keep=4)
        part.write(b"c\n")
        part.commit()
    assert part.target.read_bytes() == b"a\nb\nc\n"


def test_through_a_link_the_file_it_points_to_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old\n")
    link.symlink_to(real)
    with PartFile(link) as part:
        part.open()
        part.write(b"new\n")
        part.commit()
    assert link.is_symlink()
    assert real.read_bytes() == b"new\n"


def test_standard_output_and_devices_have_no_part_file() -> None:
    assert part_file("-", "in") is None
    assert part_file(os.devnull, "in") is None


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("out.jsonl.gz", "plain JSON Lines"),
        ("in.jsonl", "is the input file"),
        (".", "is a folder"),
        ("none/out", "there is no folder"),
    ],
)
def test_an_output_that_cannot_be_meant_is_refused(
    write_lines: Callable[..., str], tmp_path: Path, output: str, message: str
) -> None:
    source = write_lines("in.jsonl", [])
    with pytest.raises(UsageError, match=message):
        part_file(str(tmp_path / output), source)
