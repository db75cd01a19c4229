"""The answer that is read in a text."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.answers import begun_box, extract, up_to_brace


def test_extract():
    cases = [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} wait, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x \mid x > 0 \right.}", r"\left\{x \mid x > 0 \right."),
        (r"\boxed{a \\{b}}", r"a \\{b}"),  # a line break, then a group
        (r"\boxed { 7 }", "7"),
        ("\\boxed{3\n}", "3"),
        (r"The final answer is \boxed{5}, not 6. The answer is 6.", "5"),  # a box goes before phrases
        (r"\boxed 5 is in {braces}", "5"),
        (r"write it in \boxed, then {x}. The answer is 3.", "3"),
        (r"\boxed{1} and then \boxed{2", None),  # cut while it was written
        (r"\boxed{1} and then \boxed{", None),
        (r"\boxed{1} and then \boxed{}", "1"),
        (r"The answer is \boxed{12", None),
        ("The answer is \\", None),
        (r"The answer is \b", None),
        (r"The answer is $\boxe", None),
        (r"The answer is \boxed", None),
        (r"The answer is $$", None),
        (r"The answer is \[", None),
        (r"The answer is \beta", r"\beta"),
        (r"The answer is $\infty$", r"$\infty$"),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        (r"\boxed{\frac{1}{2}", None),
        ("The answer is 12.", "12"),
        ("the answer is: 12", "12"),
        ("The answer:\n  -3/4", "-3/4"),
        ("Final answer: x = 2", "x = 2"),
        ("FINAL ANSWER IS B.", "B"),
        ("**Final Answer:** 12", "12"),
        ("The answer is **12**.", "12"),
        ("The answer is 2**3.", "2**3"),
        ("The answer is ***", None),
        ("The answer is \x1f.", None),
        ("The answer is 1.\nNo. The answer is 2.\n", "2"),
        ("The answer is 5. Then again I doubt.", "5"),
        ("The answer is **5.** Then again I doubt.", "5"),
        ("The answer is 2.5. It is exact.", "2.5"),
        ("The answer is 2.5 exactly. or not", "2.5 exactly. or not"),
        ("The answer is 5. No, the answer is 6. Done.", "6"),
        ("The answer is B. Paris", "B"),
        ("The answer is 6\u3002 7 is not", "6"),
        ("The answer is 5.  \nThe rest", "5"),
        ("Answer\uff1a12", "12"),
        ("The answer\u200b is\uff1a \uff11\uff12", "12"),
        ("\u7b54\u6848\uff1a12", "12"),
        ("\u56e0\u6b64\uff0c\u7b54\u6848\u662f 12\u3002", "12"),
        ("The answer is", None),
        ("The answer is .", None),
        ("The answer is \n\n", None),
        ("nothing here", None),
        ("", None),
    ]
    assert [(text, answer, found) for text, answer in cases if (found := extract(text)) != answer] == []


@settings(deadline=None)
@given(st.text(alphabet="\\boxed{}12 .:*\n$", max_size=40) | st.text(max_size=40))
def test_an_extracted_answer_is_never_empty(text):
    for extracted in (extract(text), extract(f"The answer is {text}"), extract(f"\\boxed{{{text}")):
        assert extracted is None or extracted.strip()


@settings(deadline=None)
@given(st.text(alphabet="ab\\{}", max_size=12))
def test_a_box_holds_what_up_to_brace_reads(text):
    assert extract(f"so \\boxed{{{text}") == (up_to_brace(text) or None)


def test_up_to_brace():
    cases = [
        ("5} and so on", "5"),
        ("\\frac{1}{2}}", "\\frac{1}{2}"),
        (" 5 }", "5"),
        ("}", ""),
        ("5", None),
        ("", None),
        ("{5}", None),
        ("{5}}", "{5}"),
        ("\\}5}", "\\}5"),
        ("\\{5}", "\\{5"),
        ("5\\", None),
    ]
    assert [(text, answer, found) for text, answer in cases if (found := up_to_brace(text)) != answer] == []


def test_hostile_texts_are_read_in_one_pass():
    for text, answer in [
        ("the answer is" + "\n" * 100_000, None),
        ("the answer" + " " * 100_000, None),
        ("the answer is " + "\\" * 100_000, None),
        ("the answer is " + "." * 100_000, None),
        ("the answer is ." + "*" * 100_000, None),
        ("the answer is 5." + " " * 100_000 + "x", "5." + " " * 100_000 + "x"),
        ("the answer is " * 10_000, None),
        ("<answer>" * 10_000, None),
        ("Question: " * 10_000 + "\n\nQuestion:" * 10_000, None),
        ("\\boxed{1}, " * 10_000, "1"),
        ("#### " + "1" * 100_000 + "x\nso", None),
        ("\\boxed" + " " * 100_000, None),
        ("\\boxed{" * 20_000, None),
        ("\\boxed{" + "{" * 50_000 + "}" * 50_000 + "}", "{" * 50_000 + "}" * 50_000),
    ]:
        extracted = extract(text)
        assert extracted == (answer if answer is None else answer.strip())


def test_the_last_formula_or_number_is_taken_only_where_the_caller_allows_it() -> None:
    for text, answer in [
        (r"Thus, 196 has \( 9 \) positive divisors.", "9"),
        ("Thus, 196 has exactly **9** positive divisors.", "9"),
        (r"the perimeter is \[ P = 6 \times 7 = 42 \] inches", "42"),
        (r"so $x \le 3$.", r"x \le 3"),
        (r"$a = 1$ and then 5 of them", "5"),
        (r"are $\left(3, \frac{\pi}{2}\right)$.", r"\left(3, \frac{\pi}{2}\right)"),
        ("It costs 1,234.50 in all.", "1,234.50"),
        ("so -3/4, I think", "-3/4"),
        ("about 50% of them", "50%"),
        ("The answer is 3. Not 4.", "3"),
        (r"\boxed{3} of 4", "3"),
        (r"\boxed{3 of 4", None),
        ("3, 4: \\[\n\\boxed{}\n\\]", None),
        ("no number, x1 and v2.0 apart", None),
        ("$ $", None),
        ("", None),
    ]:
        assert extract(text, fallback="last") == answer, text
        if "boxed" not in text and "answer" not in text:
            assert extract(text) is None, text


def test_choices() -> None:
    cases = [
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(B) } 12}", "B"),
        ("The answer is (C) because A and B are wrong.", "C"),
        ("Answer: D.", "D"),
        ("So it must be C", "C"),
        ("(A) no\n(B) yes\nI choose (B).", "B"),
        ("I choose E.", None),
        ("Always Be Careful", None),
        (r"\boxed{12}", None),
        ("", None),
    ]
    assert [(text, answer, found) for text, answer in cases if (found := extract(text, choices="ABCD")) != answer] == []


def test_the_callers_own_extractor_goes_first_and_may_pass() -> None:
    def tagged(text: str) -> str | None:
        _, found, rest = text.partition("<answer>")
        return rest.partition("</answer>")[0] if found else None

    assert extract(r"<answer> 7 </answer> \boxed{8}", extractor=tagged) == "7"
    assert extract(r"\boxed{8}", extractor=tagged) == "8"
    assert extract(r"<answer> </answer> \boxed{8}", extractor=tagged) == "8"
    assert extract("none", extractor=tagged) is None


@settings(deadline=None)
@given(st.text(alphabet="\\boxed{}12 .:*$ABC()answer\n", max_size=60))
def test_no_way_to_extract_gives_an_empty_answer(text: str) -> None:
    for answer in (extract(text, fallback="last"), extract(text, choices="ABC"), extract(text, extractor=str.strip)):
        assert answer is None or answer.strip()


def test_a_begun_box_is_read_up_to_its_brace_and_else_to_the_end_of_its_line():
    cases = [
        ("5} so", "5"),
        (r"\frac{1}{2}}\]", r"\frac{1}{2}"),
        ("}", None),
        ("} 5", None),  # closed, and nothing in it
        ("", None),
        (" \n ", None),
        ("12 is it, I think\nand so on", "12 is it, I think"),
        ("\n  \\textbf{Blue Sky}\n\\endbox{}\n\\]\n\nThe sky", r"\textbf{Blue Sky}"),
        ("yes$. I hope it is correct.", "yes"),
        (r"yes\]", "yes"),
        (r"\$5$.", r"\$5"),
        ("$5$", "5"),
        ("Tokyo. The capital is", "Tokyo"),
        ("3.5. So", "3.5"),
        ("3.14", "3.14"),
        ("{1, 2", "{1, 2"),
    ]
    assert [(text, answer, found) for text, answer in cases if (found := begun_box(text)) != answer] == []


def test_the_answer_is_read_from_what_states_it() -> None:
    cases = [
        ("<answer>42</answer>", "42"),
        ("so 41? <Answer>\n 42 \n</Answer> I am sure.", "42"),
        ("<answer>Answer: 42</answer>", "42"),
        ("\\boxed{7} no. <answer>The answer is \\boxed{42}.</answer>", "42"),
        ("<answer>7</answer> No: \\boxed{42}", "42"),
        ("put it in <answer></answer>. The answer is 42.", "42"),
        ("<think>Try \\boxed{7}. No.</think>The answer is 9.", "9"),
        ("<think>so \\boxed{7}?</think>\n\n**Answer: 9**", "9"),
        ("\\boxed{7}?</think>\n\n\\boxed{9}", "9"),
        ("[THINK]The answer is 7.[/THINK] #### 9", "9"),
        ("<think>a</think>The answer is 7.<think>no</think>The answer is 9.", "9"),
        ("<think>The answer is 7.</think>That is all.", "7"),  # the model said it only there
        ("<think>The answer is 7.</think>", "7"),
        ("Final Answer: The final answer is $\\frac{1}{2}$. I hope it is correct.", "$\\frac{1}{2}$"),
        ("Answer: The answer is 12.", "12"),
        ("**Final Answer**: the answer is: **12**", "12"),
        ("The correct answer is 12.", "12"),
        ("So my answer is 12.", "12"),
        ("#### 18\n\nQuestion: Tom has 3 apples and buys 4.\nAnswer: 3+4=7\n#### 7", "18"),
        ("The answer is 18.\n\nQ: And 3+4?\nA: The answer is 7.", "18"),
        ("So \\boxed{18}.\nHuman: And 3+4?\nAssistant: \\boxed{7}", "18"),
        ("Question: What is 9+9?\nAnswer: 18", "18"),
        ("\\boxed{3}, \\boxed{-1}, \\boxed{5}", "3, -1, 5"),
        ("The solutions are \\boxed{2} and \\boxed{3}.", "2, 3"),
        ("$\\boxed{2}$, $\\boxed{3}$, and $\\boxed{\\frac{1}{2}}$", "2, 3, \\frac{1}{2}"),
        ("either \\boxed{x=1} or \\boxed{x=2}", "x=1, x=2"),
        ("\\boxed{5}, \\boxed{5}", "5"),
        ("\\boxed{3}, wait, \\boxed{5}", "5"),
        ("\\boxed{3}.\n\\boxed{5}", "5"),
        ("\\boxed{3}, \\boxed{", None),
        ("The answer is 12<|im_end|>", "12"),
        ("**Answer:** 12</s>", "12"),
        ("#### 12<|endoftext|>Human: 2?", "12"),
        ("#### 12\n\nI hope this helps!", "12"),
        ("#### $1,200.\n---\nIt is exact.", "$1,200"),
        ("#### 12\nThe answer is correct.", "12"),
        ("#### 12 divisors\nThe answer is 6.", "6"),  # a heading
        ("#### 1. Begin\nThe answer is 6.", "6"),
        ("**Final Answer**\n\n12", "12"),
        ("### Final Answer\n12. I hope it is correct.", "12"),
        ("Final Answer\n$x = 2$\n", "$x = 2$"),
        ("The answer is 12.\nThe answer is correct.", "12"),
        ("Answer: 12\nIf so, the answer is clear.", "12"),
        ("The answer is incorrect.", None),
    ]
    assert [(text, answer, found) for text, answer in cases if (found := extract(text)) != answer] == []


def test_a_choice_is_read_from_what_names_one() -> None:
    cases = [
        ("So option C it is. I hope this helps!", "C"),
        ("C it is. I hope that helps", "C"),
        ("The right choice is (B). A quick check confirms it.", "B"),
        ("The answer is (H). A pity.", "H"),
        ("I is the odd one out, so I.", "I"),
        ("So it is A.", "A"),
        ("I think it is I", "I"),
        ("Answer: Let's think step by step. The force is 3 N, so the correct option is (C).", "C"),
        ("The answer is: I will compare them. 3 < 4, hence D.", "D"),
        ("The minimum is \\boxed{x}.\nAnswer: D", "D"),
        ("The speed is \\boxed{12}. Hence (E).", "E"),
        ("the answer is d", "D"),
        ("answer is d", "D"),
        ("\\boxed{(c)}", "C"),
        ("<answer>b</answer>", "B"),
        ("<think>(A)? The answer is A.</think>The answer is B.", "B"),
        ("The answer is B.\n\nQuestion: Next?\nAnswer: C", "B"),
        ("\\boxed{A} or \\boxed{B}? \\boxed{", None),
    ]
    assert [
        (text, answer, found) for text, answer in cases if (found := extract(text, choices="ABCDEFGHIJ")) != answer
    ] == []


_NOISE_BEFORE = st.sampled_from(
    ["", "Let me see.\n\n", "2 + 2 = 4, so 4. ", "<think>Perhaps \\boxed{7}.</think>\n", "I first get $x = 7$.\n"]
)
_NOISE_BEHIND = st.sampled_from(
    ["", ".", ".\n", "\n\nQuestion: What is 1 + 1?\nAnswer: 2\n#### 2", ".\n\nHuman: \\boxed{8}?"]
)
_ENDINGS = st.sampled_from(
    [
        "\\boxed{{{}}}",
        "The answer is {}",
        "**Answer:** {}",
        "#### {}",
        "<answer>{}</answer>",
        "Final Answer: The answer is {}",
    ]
)


@settings(deadline=None)
@given(_NOISE_BEFORE, _ENDINGS, _NOISE_BEHIND, st.integers(0, 10**6))
def test_every_ending_with_noise_around_it_states_its_box(before: str, ending: str, behind: str, number: int) -> None:
    assert extract(f"{before}\n{ending.format(number)}{behind}") == extract(f"\\boxed{{{number}}}")


def test_names_boxes_languages_and_channels():
    cases = [
        ("The answer is Mr. Darcy. He is proud.", "Mr. Darcy"),
        ("The answer is Ft. Worth.", "Ft. Worth"),
        ("Answer: C. S. Lewis. He wrote it.", "C. S. Lewis"),
        ("The answer is U.N. Charter.", "U.N. Charter"),
        ("The answer is B. The others fail.", "B"),
        ("The answer is 4 cm. Therefore it fits.", "4 cm"),
        (r"so $\boxed 7$ it is", "7"),
        (r"so $\boxed \frac12$.", r"\frac12"),
        (r"first \boxed{3}, then \fbox 4.", "4"),
        (r"it is \boxed x+1$", "x+1"),
        (r"so $\boxed\pi$.", r"\pi"),
        (r"so \boxed\frac{1}{2}.", r"\frac{1}{2}"),
        (r"$\boxed\text{not so}$", r"\text{not so}"),
        (r"$\boxed+$", "+"),
        (r"$\boxed \frac{\sqrt{2}}{2}$", r"\frac{\sqrt{2}}{2}"),
        (r"\boxed 5 is more than $3", "5"),
        ("The answer is Sgt. Pepper. It is loud.", "Sgt. Pepper"),
        ("The answer is Samuel L. Jackson.", "Samuel L. Jackson"),
        ("The answer is Ste. Anne. It is old.", "Ste. Anne"),
        ("Die Antwort ist 42.", "42"),
        ("La réponse est : 42.", "42"),
        ("La respuesta es 42.", "42"),
        ("A resposta é 42.", "42"),
        ("Ответ: 42", "42"),
        (
            "<|channel|>analysis<|message|>\\boxed{1}<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{2}",
            "2",
        ),
        ("<|channel|>final<|message|>The answer is 5.<|return|>", "5"),
        ("analysisThe answer is 1.assistantfinalThe answer is 2.", "2"),
        ("analysisThe answer is 1.assistantfinal", "1"),
        ("analysis says 3; the answer is 4.", "4"),
    ]
    assert [(text, answer, found) for text, answer in cases if (found := extract(text)) != answer] == []


def test_remarks_behind_an_answer_are_not_the_answer() -> None:
    cases = [
        "The answer is 42.\n\nNote: the answer is based on the assumption that x > 0.",
        "The answer is 42. The answer is rounded to the nearest integer.",
        "**Answer:** 42\n\n**Explanation:** the answer is found by multiplying 6 by 7.",
        "**Final Answer:** 42\n\nIf the answer is not what you expected, tell me.",
        "The answer is 42\n\nDo you want me to explain how the answer is derived?",
        "The answer is 42. The answer is not 41.",
        "#### 42\n\nNote: I put it behind ####.",
        "\\boxed{42}\n\nThe answer stands in \\boxed{}, as you asked.",
        "I will put it in \\boxed{}. The answer is 42.",
        "The answer is 42, as required.",
        "The answer is 42.\n\n(Assuming the answer is an integer.)",
        "The answer is **42**, since 6*7 = 42.",
        "The answer is 42 (six times seven).",
        "The answer is 42 \u2014 six times seven.",
        "The answer is: **42** \u2705",
        "The answer is therefore 42.",
        "### Answer\n42",
        "The final answer is:\n\\[\n42\n\\]",
        "The answer to the second question is 42.",
        "Use \\boxed for it. The answer is 42.",
    ]
    assert [(text, found) for text in cases if (found := extract(text)) != "42"] == []


def test_what_belongs_to_an_answer_stays() -> None:
    for answer in ("3, 4 and 5", "3 (mod 7)", "5!", "Paris, France", "2, 288", "f(x) = x", "(1, 2)", "thusness"):
        assert extract(f"The answer is {answer}.") == answer


def test_a_remark_is_read_if_nothing_else_is_stated() -> None:
    assert extract("The answer is not 41.") == "not 41"
    assert extract("The answer is given by 42.") == "given by 42"


_DRAFT = "Perhaps \\boxed{390}. No."
_BLOCKS = {
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "gpt-oss, as shown": ("analysis", "assistantfinal"),
    "Gemma": ("<|channel>thought\n", "<channel|>"),
    "Cohere": ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    "OpenThoughts": ("<|begin_of_thought|>", "<|end_of_thought|>\n<|begin_of_solution|>"),
    "Apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "Apriel": ("Here are my steps.\n", "\n[BEGIN FINAL RESPONSE]\n"),
    "LongCat": ("<longcat_think>", "</longcat_think>"),
    "thoughts": ("<Thoughts>", "</Thoughts>"),
    "a block of an unknown name": ("<scratchpad>", "</scratchpad>"),
}
_TURN_ENDS = (
    *("", "<|return|>", "<|im_end|>", "<turn|>", "<|END_RESPONSE|>", "<|end_of_solution|>", "<|eom_id|>"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<|end_of_text|>", "[/INST]", "<eos>", "[|endofturn|]", "</s>"),
)


def test_neither_thinking_nor_the_end_of_a_turn_is_the_answer() -> None:
    wrong = []
    for (model, (opening, close)), end in itertools.product(_BLOCKS.items(), _TURN_ENDS):
        begun, next_turn = f"{opening}{_DRAFT}{close}", f"{end}\n<|im_start|>user\nIs 7 odd? (C)?"
        choice = extract(f"{opening}(A)? No.{close}I choose (B){next_turn}", choices="ABC")
        found = extract(f"{begun}The answer is 391{end}"), extract(f"{begun}So 391{next_turn}", fallback="last"), choice
        if found != ("391", "391", "B"):
            wrong.append((model, end, found))
    assert wrong == []


def test_a_mark_that_ends_turns_may_be_the_answer_itself() -> None:
    assert extract("Which token is it? The answer is <|im_end|>.") == "<|im_end|>"
    assert extract("<|im_start|>assistant\nThe answer is 5.<|im_end|>") == "5"
    assert extract("Perhaps \\boxed{3}. <|begin_of_box|>42<|end_of_box|>") == "42"
    assert extract("<p>The answer is 5</p><p>I hope this helps.</p>") == "5"


def test_a_choice_is_read_in_other_languages() -> None:
    cases = [
        "La respuesta correcta es (B). (A) y (C) no.",
        "La bonne r\u00e9ponse est la B, car A et C sont fausses.",
        "Die korrekte L\u00f6sung lautet (B). (A) scheidet aus.",
        "A resposta correta \u00e9 a B, pois A e C n\u00e3o s\u00e3o.",
        "Het antwoord is B. A en C zijn fout.",
        "\u6b63\u89e3\u306fB\u3067\u3059\u3002A\u3068C\u306f\u9055\u3044\u307e\u3059\u3002",
        "\uc815\ub2f5\uc740 B\uc785\ub2c8\ub2e4. A\uc640 C\ub294 \ud2c0\ub9bd\ub2c8\ub2e4.",
        "\u6240\u4ee5\u9009B\u3002A\u548cC\u4e0d\u5bf9\u3002",
        "\u0627\u0644\u0625\u062c\u0627\u0628\u0629: B. \u0644\u0627 A \u0648\u0644\u0627 C",
        "\u0e04\u0e33\u0e15\u0e2d\u0e1a\u0e04\u0e37\u0e2d B. A C",
    ]
    assert [(text, found) for text in cases if (found := extract(text, choices="ABCD")) != "B"] == []
