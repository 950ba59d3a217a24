"""The ladder of sizes, worked out by hand."""

import pytest

from seer_dllm.buckets import Buckets


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((700,), (1, 2, 4, 8, 16, 32, 64, 128, 256, 320, 384, 448, 512, 640, 700)),
        ((1,), (1,)),
        ((2,), (1, 2)),
        ((256,), (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ((257,), (1, 2, 4, 8, 16, 32, 64, 128, 256, 257)),
        ((1280, 256), (256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280)),
        ((40, 1, 8), (1, 2, 4, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40)),
        ((100, 8, 32), (8, 16, 32, 40, 48, 56, 64, 80, 96, 100)),
        ((9, 1, 1), (1, 2, 3, 4, 5, 6, 7, 8, 9)),  # a quarter of 1, 2 and 4 is no more than 1
        ((160, 64, 8), (64, 80, 96, 112, 128, 160)),
        ((5, 8), (5,)),
        ((8, 8), (8,)),
    ],
)
def test_ladders_by_hand(arguments, sizes):
    assert Buckets(*arguments).sizes == sizes


def test_the_configured_maximum_is_a_bucket_and_more_is_a_miss():
    buckets = Buckets(700)
    assert 700 in buckets.sizes
    assert [buckets.bucket_for(n) for n in (1, 3, 256, 257, 641, 700)] == [1, 4, 256, 320, 700, 700]
    assert buckets.bucket_for(701) is None


@pytest.mark.parametrize("maximum", [1, 2, 7, 64, 100, 1000, 4097])
@pytest.mark.parametrize("smallest", [1, 16])
@pytest.mark.parametrize("until", [1, 8, 256])
def test_the_bucket_is_the_least_that_holds_a_size(maximum, smallest, until):
    buckets = Buckets(maximum, smallest, until)
    assert list(buckets.sizes) == sorted(set(buckets.sizes))
    for n in range(1, maximum + 1):
        assert buckets.bucket_for(n) == min(size for size in buckets.sizes if size >= n)
        if n > max(smallest, until):
            assert buckets.bucket_for(n) < 1.25 * n or buckets.bucket_for(n) == n + 1
    assert buckets.bucket_for(maximum + 1) is None


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((0,), "maximum must be a positive whole number, got 0"),
        ((True,), "maximum must be a positive whole number, got True"),
        ((64.0,), "maximum must be a positive whole number, got 64.0"),
        ((64, 0), "smallest must be a positive whole number, got 0"),
        ((64, 12), "smallest must be a power of two, got 12"),
        ((64, 1, 48), "doubling_until must be a power of two, got 48"),
    ],
)
def test_bad_ladders_are_refused(arguments, rule):
    with pytest.raises(ValueError, match=rule):
        Buckets(*arguments)


@pytest.mark.parametrize("n", [0, -1, 2.0, True, None])
def test_bad_sizes_are_refused(n):
    with pytest.raises(ValueError, match="n must be a positive whole number, got"):
        Buckets(8).bucket_for(n)
