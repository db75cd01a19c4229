"""Classes of equal answers, in whatever order the answers come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.answers import Verdict, compare
from scaffolding_ext.answers.classes import Grouping, grouping


def grouped(answers: list[str | None], verdict: Verdict = Verdict.UNDETERMINED) -> tuple[Grouping, int]:
    """What `grouping` says where every open pair gets one verdict, and how many pairs were open."""
    num_asked = 0
    steps = grouping(answers, compare)
    try:
        pairs = next(steps)
        while True:
            num_asked += len(pairs)
            pairs = steps.send([verdict] * len(pairs))
    except StopIteration as stop:
        return stop.value, num_asked


def test_a_class_number_for_each_answer_in_order_of_first_appearance() -> None:
    assert grouped(["7", None, "1/2", "0.5", None, "7.0"]) == (Grouping([0, -1, 1, 1, -1, 0], 0), 0)
    assert grouped([]) == (Grouping([], 0), 0)
    assert grouped([None]) == (Grouping([-1], 0), 0)


def test_open_pairs_are_asked_once_and_answered_by_the_caller() -> None:
    answers = ["x+1", "1+x", "x+1", "5", "5.0"]
    assert grouped(answers) == (Grouping([0, 1, 0, 2, 2], 2), 3)
    assert grouped(answers, Verdict.DIFFERENT) == (Grouping([0, 1, 0, 2, 2], 0), 3)
    assert grouped(["x+1", "1+x", "1+x"], Verdict.EQUAL) == (Grouping([0, 0, 0], 0), 1)


_ANY = st.lists(
    st.sampled_from(["1,2", "2,1", "(1,2)", "(2,1)", "x+1", "1+x", "5", "5.0", "5 cm", "x=5", None]), max_size=9
)


@settings(deadline=None)
@given(st.data(), _ANY, st.sampled_from(Verdict))
def test_classes_do_not_depend_on_the_order_of_the_answers_not_even_where_equality_is_not_transitive(
    data: st.DataObject, answers: list[str | None], verdict: Verdict
) -> None:
    order = data.draw(st.permutations(range(len(answers))))
    classes, num_asked = grouped(answers, verdict)
    shuffled, _ = grouped([answers[i] for i in order], verdict)
    back = dict(zip(order, shuffled.classes, strict=True))
    assert all((classes.classes[i] == classes.classes[j]) == (back[i] == back[j]) for i in back for j in back)
    num_distinct = len({answer for answer in answers if answer is not None})
    assert num_asked <= num_distinct * (1 + max(classes.classes, default=-1))
