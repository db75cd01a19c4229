"""The order of service, in which nobody waits for ever."""

import itertools

import pytest

from scaffolding_ext.scheduling import WaitingLine


def served(line):
    order = []
    while line:
        order.append(line[0])
        line.remove(order[-1])
    return order


def test_the_lowest_priority_comes_first_and_those_of_one_priority_by_arrival():
    line = WaitingLine(patience=100)
    for who, priority in (("a", 1.0), ("b", 0.0), ("c", 1.0), ("d", -1.0), ("e", 0.0)):
        line.add(who, priority)
    assert [line[place] for place in range(5)] == ["d", "b", "e", "a", "c"]
    line.remove("e")
    assert "e" not in line
    assert served(line) == ["d", "b", "a", "c"]


def test_without_patience_all_are_served_as_they_come_in():
    line = WaitingLine(patience=0)
    for who, priority in (("a", 1.0), ("b", 0.0), ("c", -1.0)):
        line.add(who, priority)
    assert served(line) == ["a", "b", "c"]


@pytest.mark.parametrize("patience", [1, 3, 7])
def test_whoever_was_overtaken_too_often_is_next(patience):
    line = WaitingLine(patience)
    line.add("patient", 9.0)
    overtaking = []
    for number in itertools.count():
        line.add(number)
        if line[0] == "patient":
            break
        overtaking.append(line[0])
        line.remove(line[0])
    assert overtaking == list(range(patience))


def test_who_comes_while_another_thread_reads_the_line_does_not_break_the_reading() -> None:
    class Growing(WaitingLine[str]):
        """Grows when its length is asked for, as `list` does between the first and the last step of a reading."""

        def __len__(self) -> int:
            self.add(f"comes {super().__len__()}")
            return super().__len__()

    line = Growing(0)
    line.add("waits")
    assert list(line) == ["waits"]
