"""What a case makes of its samples."""

from benchmarks.samples import Samples


def test_the_median_and_the_worst_of_a_row() -> None:
    samples = Samples()
    for failed in (0, 0, 3):
        samples.add("appliance", "during swaps", "not answered", "", failed)
    samples.add("appliance", "without swaps", "not answered", "", 9)
    row = ("appliance", "during swaps", "not answered")
    assert samples.median(*row) == 0
    assert samples.highest(*row) == 3
    assert samples.highest("triton", *row[1:]) is None
