from autotune.base.nested import (
    MAX_DEPTH,
    MISSING,
    clashes,
    differences,
    is_too_deep,
    look_up,
    merge,
    without,
)

UNDER = {"a": 1, "s": {"x": 1, "y": {"z": 2}}, "t": 3}


def test_merge_goes_into_sections_and_changes_neither():
    over = {"s": {"y": {"w": 5}, "x": 9}, "t": {"u": 1}}
    assert merge(UNDER, over) == {"a": 1, "s": {"x": 9, "y": {"z": 2, "w": 5}}, "t": {"u": 1}}
    assert UNDER == {"a": 1, "s": {"x": 1, "y": {"z": 2}}, "t": 3}


def test_clashes_are_the_values_that_give_way():
    over = {"a": 1, "s": {"x": 9, "new": 1}, "t": {"u": 1}}
    assert dict(clashes(UNDER, over)) == {"s.x": (1, 9), "t": (3, {"u": 1})}


def test_look_up_and_without_follow_a_dotted_path():
    assert look_up(UNDER, "s.y.z") == 2
    assert look_up(UNDER, "s.y.absent") is None
    assert look_up(UNDER, "a.b") is None
    assert without(UNDER, "s.y") == {"a": 1, "s": {"x": 1}, "t": 3}
    assert without(UNDER, "a.b") == UNDER


def test_depth_counts_sections_and_lists_and_needs_no_stack():
    def nested(levels):
        data = 1
        for level in range(levels):
            data = [data] if level % 2 else {"a": data}
        return data

    assert not is_too_deep(nested(MAX_DEPTH - 1))
    assert is_too_deep(nested(MAX_DEPTH))
    assert is_too_deep(nested(100_000))


def test_differences_name_what_is_not_there():
    after = {"a": 1, "s": {"x": 2, "y": 5}, "u": None}
    assert list(differences(UNDER, after)) == [
        (("s", "x"), 1, 2),
        (("s", "y"), {"z": 2}, 5),
        (("t",), 3, MISSING),
        (("u",), MISSING, None),
    ]
