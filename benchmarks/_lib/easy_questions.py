"""Questions so easy that a model of 135 million parameters may be right on some of them, each kind drawn by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask


def _pairs(text: str) -> dict[str, str]:
    """The last word of each piece, by what stands before it."""
    return dict(piece.rsplit(" ", 1) for piece in text.split(", "))


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_NAMES = ("Mia", "Tom", "Ana", "Leo", "Eva", "Sam", "Ida", "Max")
_THINGS = ("apples", "books", "pens", "stamps", "shells", "cards", "eggs", "coins")
_WORDS = (
    *("apple", "bread", "chair", "dream", "eagle", "fruit", "grass", "house", "island", "jacket", "kitten", "lemon"),
    *("mouse", "night", "ocean", "paper", "queen", "river", "stone", "table", "uncle", "voice", "water", "young"),
    *("zebra", "bottle", "candle", "doctor", "engine", "forest", "garden", "hammer", "insect", "jungle", "letter"),
    *("market", "number", "orange", "pencil", "rabbit", "school", "ticket", "window", "yellow", "bridge", "cloud"),
)
_KINDS = {
    "animal": ("dog", "horse", "lion", "eagle", "shark", "frog", "snake", "whale", "rabbit", "sheep", "duck", "tiger"),
    "fruit": (
        "apple",
        "banana",
        "cherry",
        "grape",
        "lemon",
        "mango",
        "peach",
        "pear",
        "plum",
        "orange",
        "melon",
        "fig",
    ),
    "tool": ("hammer", "saw", "drill", "wrench", "axe", "shovel", "rake", "screwdriver", "chisel", "pliers"),
    "color": ("red", "blue", "green", "yellow", "purple", "brown", "pink", "black", "white", "grey"),
}
_OPPOSITES = _pairs(
    "hot cold, big small, up down, day night, old young, fast slow, happy sad, wet dry, hard soft, light dark, "
    "rich poor, full empty, open closed, in out, win lose, push pull, early late, strong weak, high low, left right, "
    "long short, buy sell, begin end, love hate, true false, black white, always never, above below, before after, "
    "thick thin, loud quiet, clean dirty, near far"
)
_CAPITALS = _pairs(
    "France Paris, Germany Berlin, Italy Rome, Spain Madrid, Japan Tokyo, China Beijing, Egypt Cairo, Greece Athens, "
    "Portugal Lisbon, Austria Vienna, Russia Moscow, Canada Ottawa, Australia Canberra, Norway Oslo, Sweden Stockholm, "
    "Finland Helsinki, Denmark Copenhagen, Poland Warsaw, Hungary Budapest, Ireland Dublin, Cuba Havana, Peru Lima, "
    "Chile Santiago, Kenya Nairobi, Iran Tehran, Iraq Baghdad, Turkey Ankara, Thailand Bangkok, Vietnam Hanoi, "
    "South Korea Seoul, Belgium Brussels, Serbia Belgrade, Romania Bucharest, Bulgaria Sofia, Croatia Zagreb, "
    "Nepal Kathmandu, Colombia Bogota, Venezuela Caracas, Ukraine Kyiv, Iceland Reykjavik, Morocco Rabat, Ghana Accra"
)


class Question(NamedTuple):
    """A question, its right answer, and how one thinks before one answers it."""

    text: str
    answer: str
    thought: str


Draw = Callable[[random.Random], Question]


def _added(terms: Sequence[int]) -> str:
    """A running sum."""
    parts, total = [], terms[0]
    for term in terms[1:]:
        parts.append(f"{total} + {term} = {total + term}.")
        total += term
    return " ".join(parts)


def _sum(num: int, most: int = 9, *, twice: bool = False) -> Draw:
    def draw(rng: random.Random) -> Question:
        terms = [rng.randint(1, most) for _ in range(num)]
        thought = _added(terms)
        if twice:
            thought += f" Let me check. {thought}"
        return Question(f"What is {' + '.join(map(str, terms))}?", str(sum(terms)), thought)

    return draw


def _difference(rng: random.Random) -> Question:
    larger, smaller = sorted((rng.randint(5, 20), rng.randint(1, 9)), reverse=True)
    left = larger - smaller
    return Question(f"What is {larger} - {smaller}?", str(left), f"{larger} - {smaller} = {left}.")


def _product(rng: random.Random) -> Question:
    first, second = rng.randint(2, 9), rng.randint(2, 9)
    thought = f"{first} * {second} is {' + '.join([str(first)] * second)}. {_added([first] * second)}"
    return Question(f"What is {first} * {second}?", str(first * second), thought)


def _story(num_steps: int, *, twice: bool = False) -> Draw:
    def draw(rng: random.Random) -> Question:
        name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
        total = rng.randint(3, 9)
        parts, thoughts = [f"{name} has {total} {thing}."], []
        for _ in range(num_steps):
            num = rng.randint(2, 6)
            if rng.random() < 0.5 and num < total:
                parts.append(f"{name} gives {num} {thing} away.")
                thoughts.append(f"{name} gives {num} away: {total} - {num} = {total - num}.")
                total -= num
            else:
                parts.append(f"{name} buys {num} more {thing}.")
                thoughts.append(f"{name} buys {num} more: {total} + {num} = {total + num}.")
                total += num
        thought = f"{parts[0]} {' '.join(thoughts)}"
        if twice:
            thought += f" Let me check. {thought}"
        return Question(f"{' '.join(parts)} How many {thing} does {name} have now?", str(total), thought)

    return draw


def _larger(most: int) -> Draw:
    def draw(rng: random.Random) -> Question:
        first, second = rng.sample(range(1, most), 2)
        larger, smaller = max(first, second), min(first, second)
        return Question(
            f"Which number is larger, {first} or {second}?", str(larger), f"{larger} is larger than {smaller}."
        )

    return draw


def _largest(num: int, most: int) -> Draw:
    def draw(rng: random.Random) -> Question:
        numbers = rng.sample(range(1, most), num)
        thoughts, best = [f"Begin with {numbers[0]}."], numbers[0]
        for number in numbers[1:]:
            thoughts.append(f"{number} is {'larger' if number > best else 'smaller'} than {best}.")
            best = max(best, number)
            thoughts.append(f"The largest so far is {best}.")
        asked = f"Which of these numbers is the largest: {', '.join(map(str, numbers))}?"
        return Question(asked, str(best), " ".join(thoughts))

    return draw


def _even_or_odd(rng: random.Random) -> Question:
    number = rng.randint(10, 99)
    kind = "odd" if number % 2 else "even"
    thought = f"The last digit of {number} is {number % 10}. {number % 10} is {kind}."
    return Question(f"Is the number {number} even or odd?", kind, thought)


def _letters(word: str) -> str:
    return "-".join(word)


def _first_letter(rng: random.Random) -> Question:
    word = rng.choice(_WORDS)
    return Question(f'What is the first letter of the word "{word}"?', word[0], f"The letters are {_letters(word)}.")


def _last_letter(rng: random.Random) -> Question:
    word = rng.choice(_WORDS)
    return Question(f'What is the last letter of the word "{word}"?', word[-1], f"The letters are {_letters(word)}.")


def _length(rng: random.Random) -> Question:
    word = rng.choice(_WORDS)
    thought = f"The letters are {', '.join(f'{letter} ({place})' for place, letter in enumerate(word, 1))}."
    return Question(f'How many letters does the word "{word}" have?', str(len(word)), thought)


def _alphabet(rng: random.Random) -> Question:
    both = rng.sample(_WORDS, 2)
    first, second = sorted(both)
    thought = f'"{first}" begins with {first[0]} and "{second}" begins with {second[0]}.'
    return Question(f'Which word comes first in the alphabet, "{both[0]}" or "{both[1]}"?', first, thought)


def _listed(least: int, most: int, *, twice: bool = False) -> Draw:
    def draw(rng: random.Random) -> Question:
        words = rng.sample(_WORDS, rng.randint(least, most))
        thought = f"{', '.join(f'{word} ({place})' for place, word in enumerate(words, 1))}."
        if twice:
            thought += f" Let me check. {thought}"
        return Question(f"How many words are in this list: {', '.join(words)}?", str(len(words)), thought)

    return draw


def _days_later(most: int) -> Draw:
    def draw(rng: random.Random) -> Question:
        today, later = rng.randrange(7), rng.randint(1, most)
        days = "1 day" if later == 1 else f"{later} days"
        seen = [f"in {day} {'day' if day == 1 else 'days'} {_DAYS[(today + day) % 7]}" for day in range(1, later + 1)]
        thought = f"Today is {_DAYS[today]}, {', '.join(seen)}."
        right = _DAYS[(today + later) % 7]
        return Question(f"Today is {_DAYS[today]}. Which day of the week is it in {days}?", right, thought)

    return draw


def _next_month(rng: random.Random) -> Question:
    month = rng.randrange(12)
    before, after = _MONTHS[month], _MONTHS[(month + 1) % 12]
    return Question(f"Which month comes after {before}?", after, f"After {before} comes {after}.")


def _sequence(rng: random.Random) -> Question:
    first, step = rng.randint(1, 10), rng.choice((1, 2, 3, 5, 10))
    numbers = [first + step * index for index in range(5)]
    thought = f"{numbers[1]} - {numbers[0]} = {step}. {numbers[-2]} + {step} = {numbers[-1]}."
    return Question(f"Which number comes next: {', '.join(map(str, numbers[:-1]))}?", str(numbers[-1]), thought)


def _kind(rng: random.Random) -> Question:
    right, wrong = rng.sample(list(_KINDS), 2)
    both = [right, wrong]
    rng.shuffle(both)
    thing = rng.choice([word for word in _KINDS[right] if word not in _KINDS[wrong]])
    return Question(f"Is {thing} a kind of {both[0]} or of {both[1]}?", right, f"{thing} is a kind of {right}.")


def _odd_one_out(rng: random.Random) -> Question:
    most, one = rng.sample(list(_KINDS), 2)
    words = rng.sample([word for word in _KINDS[most] if word not in _KINDS[one]], 3)
    other = rng.choice([word for word in _KINDS[one] if word not in _KINDS[most]])
    place = rng.randrange(4)
    kinds = [f"{word} is a kind of {most}." for word in words]
    kinds.insert(place, f"{other} is a kind of {one}.")
    words.insert(place, other)
    return Question(f"Which word does not belong with the others: {', '.join(words)}?", other, " ".join(kinds))


def _opposite(rng: random.Random) -> Question:
    word = rng.choice(list(_OPPOSITES))
    return Question(f'What is the opposite of "{word}"?', _OPPOSITES[word], f"Not {word}, but {_OPPOSITES[word]}.")


def _capital(rng: random.Random) -> Question:
    country = rng.choice(list(_CAPITALS))
    city = _CAPITALS[country]
    return Question(f"What is the capital of {country}?", city, f"The capital of {country} is {city}.")


TASKS: Mapping[str, Draw] = {
    "sum of 2 digits": _sum(2),
    "sum of 3 digits": _sum(3),
    "sum of 4 digits": _sum(4),
    "sum of 6 digits": _sum(6),
    "sum of 2 digits, checked": _sum(2, twice=True),
    "sum of 3 digits, checked": _sum(3, twice=True),
    "sum of 2 numbers up to 30": _sum(2, 30),
    "difference": _difference,
    "product of 2 digits": _product,
    "story, 1 step": _story(1),
    "story, 1 step, checked": _story(1, twice=True),
    "story, 2 steps": _story(2),
    "story, 3 steps": _story(3),
    "larger of 2, up to 20": _larger(20),
    "larger of 2, up to 1000": _larger(1000),
    "largest of 4": _largest(4, 100),
    "even or odd": _even_or_odd,
    "first letter": _first_letter,
    "last letter": _last_letter,
    "letters of a word": _length,
    "first in the alphabet": _alphabet,
    "words in a list, 2 to 6": _listed(2, 6),
    "words in a list, 2 to 6, checked": _listed(2, 6, twice=True),
    "words in a list, 5 to 12": _listed(5, 12),
    "days later, up to 2": _days_later(2),
    "days later, up to 6": _days_later(6),
    "next month": _next_month,
    "next number": _sequence,
    "kind of 2": _kind,
    "odd one out": _odd_one_out,
    "opposite": _opposite,
    "capital": _capital,
}
# The easiest settings of reasoning-gym's easiest tasks; only those with one right answer.
GYM_TASKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gym chain_sum": ("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}),
    "gym products": ("products", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}),
    "gym basic_arithmetic": ("basic_arithmetic", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}),
    "gym simple_equations": ("simple_equations", {"min_terms": 2, "max_terms": 2, "max_value": 9}),
    "gym letter_counting": ("letter_counting", {"min_words": 1, "max_words": 3}),
    "gym spell_backward": ("spell_backward", {"min_word_len": 3, "max_word_len": 3}),
    "gym leg_counting": ("leg_counting", {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 3}),
    "gym gcd": ("gcd", {"min_value": 1, "max_value": 12}),
    "gym lcm": ("lcm", {"min_value": 1, "max_value": 9}),
    "gym coin_flip": ("coin_flip", {"min_trials": 1, "max_trials": 2}),
    "gym calendar_arithmetic": ("calendar_arithmetic", {}),
    "gym family_relationships": ("family_relationships", {"min_family_size": 3, "max_family_size": 3}),
    "gym count_bits": ("count_bits", {"min_n": 1, "max_n": 8}),
    "gym syllogism": ("syllogism", {}),
    "gym needle_haystack": ("needle_haystack", {"min_num_statements": 3, "max_num_statements": 3}),
    "gym number_sequence": ("number_sequence", {"min_terms": 4, "max_terms": 4, "max_complexity": 1}),
    "gym gsm_symbolic": ("gsm_symbolic", {}),
    "gym aiw": ("aiw", {}),
}


NUM_EXAMPLES = 4
ASK = " The answer is \\boxed{"


class Exam(NamedTuple):
    """Questions of one task, and worked examples that are shown before each of them."""

    task: str
    examples: Sequence[Question]
    questions: Sequence[Question]

    def samples(self, prompting: Prompting, *, with_examples: bool = True) -> list[Example]:
        """The questions as the model reads them: behind the examples as turns of a conversation, or alone."""
        examples = self.examples if with_examples else ()
        return [
            Example(f"{self.task} {number}", _prompt(prompting, examples, question), question.answer, self.task)
            for number, question in enumerate(self.questions)
        ]


def draw_exam(task: str, num: int, seed: int) -> Exam:
    """Different questions, fewer than `num` where the task has no more.

    Args:
        task: A key of `TASKS` or of `GYM_TASKS`; the examples of the latter have no thoughts.
        num: How many.
        seed: Which.

    Raises:
        MissingDependencyError: A task of reasoning-gym, which is not installed.
    """
    drawn: dict[str, Question] = {}
    if task in GYM_TASKS:
        name, args = GYM_TASKS[task]
        samples = load_dataset(f"reasoning_gym:{name}", num_samples=2 * (num + NUM_EXAMPLES), seed=seed, args=args)
        drawn = {each.prompt: Question(each.prompt, each.target, "") for each in samples}
    else:
        rng = random.Random(f"{seed} {task}")
        for question in (TASKS[task](rng) for _ in range(20 * (num + NUM_EXAMPLES))):
            drawn.setdefault(question.text, question)
    questions = list(drawn.values())
    return Exam(task, questions[:NUM_EXAMPLES], questions[NUM_EXAMPLES : NUM_EXAMPLES + num])


def _prompt(prompting: Prompting, examples: Sequence[Question], question: Question) -> str:
    """What the model reads: by its chat template, or as text where it has none."""
    shown = [(each.text, f"{each.thought}{ASK}{each.answer}}}.".strip()) for each in examples]
    task = GenerationTask(input_str=question.text)
    turns = [
        {"role": role, "content": content}
        for pair in shown
        for role, content in zip(("user", "assistant"), pair, strict=True)
    ]
    try:
        prompting.apply(task, turns)
    except ConfigError:  # there is no chat template
        return "".join(f"{asked}\n{answer}\n\n" for asked, answer in shown) + f"{question.text}\n"
    return str(task.input_str)
