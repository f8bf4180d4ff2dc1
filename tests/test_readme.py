"""The README says what the code does."""

from pathlib import Path

from broker.compatibility import main, rewritten, served_apis

ROOT = Path(__file__).resolve().parent.parent


def test_the_generated_parts_are_up_to_date() -> None:
    assert main(["--check", str(ROOT / "README.md")]) == 0


def test_a_stale_table_is_noticed_and_mended() -> None:
    stale = "x\n<!-- compatibility:begin -->\nold\n<!-- compatibility:end -->\ny"
    mended = rewritten(stale, ROOT)
    assert "old" not in mended
    assert "| Produce | 0 | 0-11 | 0-11 |" in mended
    assert rewritten(mended, ROOT) == mended
    assert len(served_apis()) >= 6
