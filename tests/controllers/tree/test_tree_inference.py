"""TensorRT-LLM's own trees run on our host and workers: stand-ins of their structure, step by step as theirs goes."""

import math
import random
import re
from types import SimpleNamespace

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.tree.tree_inference import ResultRewardController, TreeInferenceController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import Controller, GenerationTask, ParallelProcess
from scaffolding_ext.stack.build import load_stack
from scaffolding_ext.testing.doubles import ScriptedWorker


class Thought:
    """A node: all text up to it, its parent, its children, visits and value."""

    def __init__(self, state, parent=None):
        self.state, self.parent, self.children = state, parent, []
        self.visits, self.value = 0, 0.0
        self.depth = 0 if parent is None else parent.depth + 1

    def line(self):
        return [self] if self.parent is None else [*self.parent.line(), self]


class MCTSController(Controller):
    """In the order of upstream's: select, expand by a `ParallelProcess`, evaluate one random child, back up; then one
    request for the answer, which the task gets as `.result`."""

    def __init__(self, generation_controller, reward_controller=None, max_depth=5, max_iterations=100):
        super().__init__()
        self.generation_controller, self.reward_controller = generation_controller, reward_controller
        self.max_depth, self.max_iterations = max_depth, max_iterations

    def process(self, tasks, **kwargs):
        assert len(tasks) == 1
        root, chance = Thought(tasks[0].input_str), random.Random(0)
        for _ in range(self.max_iterations):
            node = root
            while node.children:
                node = max(node.children, key=self._bound)
            if node.depth < self.max_depth:
                asked = GenerationTask.create_from_prompt(f"State:\n{node.state}\nGenerate 3 possible next steps.")
                asked.max_tokens, asked.temperature = 200, 0.7
                yield ParallelProcess([self.generation_controller.clone()], [[asked]], [{}])
                thoughts = re.findall(r"^\d\.\s*(.+)$", asked.output_str, re.MULTILINE)
                node.children = [Thought(f"{node.state}\n{thought}", node) for thought in thoughts]
                node = chance.choice(node.children) if node.children else node
            reward = min(1.0, len(node.state.split()) / 100)
            if self.reward_controller is not None:
                judged = GenerationTask()
                judged.input_str = root.state
                judged.result = SimpleNamespace(_outputs=[SimpleNamespace(text=node.state)])
                yield from self.reward_controller.process([judged])
                reward = float(self.reward_controller.scores[0])
            for each in node.line():
                each.visits, each.value = each.visits + 1, each.value + reward
        leaf = max((n for n in self._all(root) if not n.children and n.visits), key=lambda n: n.value / n.visits)
        steps = "\n".join(each.state.splitlines()[-1] for each in leaf.line())
        last = GenerationTask.create_from_prompt(f"{steps}\nNow provide the final answer succinctly.")
        last.max_tokens, last.temperature = 256, 0.2
        yield from self.generation_controller.process([last])
        tasks[0].result = last.result

    def _bound(self, node):
        if not node.visits:
            return math.inf
        return node.value / node.visits + 1.414 * math.sqrt(math.log(node.parent.visits) / node.visits)

    def _all(self, node):
        return [node, *(below for child in node.children for below in self._all(child))]


class TOTController(Controller):
    """In the order of upstream's: a level's nodes in one `ParallelProcess`, all its rewards in one batch, the best two
    children of each node; the answer ends at `</think>`."""

    def __init__(self, generation_controller, reward_controller, max_depth=4, branch_factor=2):
        super().__init__()
        self.generation_controller, self.reward_controller = generation_controller, reward_controller
        self.max_depth, self.branch_factor = max_depth, branch_factor

    def process(self, tasks, **kwargs):
        assert len(tasks) == 1
        level, best = [tasks[0].input_str], (-math.inf, "")
        for _ in range(self.max_depth):
            asked = [[GenerationTask.create_from_prompt(f"{state}\nGenerate 3 approaches.")] for state in level]
            yield ParallelProcess([self.generation_controller.clone() for _ in asked], asked, [{} for _ in asked])
            grown = [
                [f"{state}\n\nNext step: {thought}" for thought in re.findall(r"^\d\.\s*(.+)$", t.output_str, re.M)]
                for state, [t] in zip(level, asked, strict=True)
            ]
            judged = []
            for state in (state for group in grown for state in group):
                task = GenerationTask()
                task.input_str = tasks[0].input_str
                task.result = SimpleNamespace(_outputs=[SimpleNamespace(text=state)])
                judged.append(task)
            yield from self.reward_controller.process(judged)
            scores = iter(self.reward_controller.scores)
            ranked = [sorted(((next(scores), state) for state in group), reverse=True) for group in grown]
            level = [state for group in ranked for _, state in group[: self.branch_factor]]
            best = max(best, *(group[0] for group in ranked))
        last = GenerationTask.create_from_prompt(f"{best[1]}\nProvide the final answer succinctly.")
        last.max_tokens, last.stop = 1024, ["</think>"]
        yield from self.generation_controller.process([last])
        tasks[0].result = last.result


def respond(task):
    """Three thoughts, a verdict, or the answer, by what is asked."""
    if "succinctly" in task.input_str:
        return f"\\boxed{{{task.input_str.count('seven')}}}</think> and more"
    return "1. add seven\n2. add eight\n3. add nine" if "Generate 3" in task.input_str else "YES"


def answered(controller, num=1):
    worker = ScriptedWorker(respond)
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        results = llm.generate([f"Question {number}" for number in range(num)])
    return results, worker.tasks


class Sevens(Controller):
    """Prefers texts with more sevens."""

    def __init__(self):
        super().__init__()
        self.scores = None

    def process(self, tasks, **kwargs):
        yield from ()
        self.scores = [min(0.99, 0.1 + 0.2 * task.output_str.count("seven")) for task in tasks]


def test_their_mcts_as_it_is_hands_over_no_answer_since_newer_tasks_lack_the_field():
    [result], tasks = answered(MCTSController(NativeGenerationController(), max_iterations=2))
    assert len(tasks) == 3
    assert result.outputs[0].text is None


def test_their_mcts_runs_on_our_host_and_workers():
    controller = TreeInferenceController(MCTSController(NativeGenerationController(), max_iterations=12))
    [result], tasks = answered(controller)
    assert result.outputs[0].text.startswith("\\boxed{")
    assert [task.temperature for task in tasks][-1] == 0.2
    assert len(tasks) == 12 + 1  # a request an iteration, and one for the answer
    assert result.program.ledger.total.decoded == sum(len(task.output_tokens) for task in tasks)


def test_their_tree_of_thoughts_is_steered_by_our_reward_controller():
    rewards = ResultRewardController(Sevens())
    controller = TreeInferenceController(TOTController(NativeGenerationController(), rewards))
    results, tasks = answered(controller, num=3)
    assert [result.outputs[0].text for result in results] == [
        "\\boxed{4}"
    ] * 3  # the judge likes sevens: all four steps
    assert len(tasks) == 3 * (1 + 2 + 4 + 8 + 1)


def test_a_tree_over_a_controller_of_ours_that_writes_the_text_itself_gets_its_answer():
    """A vote yields tasks of its samples, never the one that it was given."""
    vote = MajorityVoteController(NativeGenerationController({"temperature": 0.7}), 3)
    search = MCTSController(vote, max_iterations=2)
    [result], tasks = answered(TreeInferenceController(search))
    assert result.outputs[0].text == "\\boxed{1}</think> and more"
    assert result.answer == "1"
    assert 2 * (2 + 1) <= len(tasks) <= 3 * (2 + 1)  # a vote whose answer is settled stops
    assert type(search.generation_controller) is MajorityVoteController  # theirs is left as it was


@pytest.mark.parametrize("raw", [False, True])
def test_each_prompt_of_a_tree_is_rendered_and_the_question_in_it_is_the_users(saved_model, raw):
    judged = []

    class Judge(Sevens):
        def process(self, tasks, **kwargs):
            judged.extend(tasks)
            yield from super().process(tasks, **kwargs)

    prompting = Prompting.for_model(saved_model("smollm2"), prompt_suffix=" Box it.")
    search = MCTSController(NativeGenerationController(), ResultRewardController(Judge()), max_iterations=3)
    controller = TreeInferenceController(search)
    controller.prompting = prompting
    worker = ScriptedWorker(respond)
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        llm.generate("Question 7", raw=raw)
    head, tail = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    assert len(worker.tasks) == 3 + 1
    assert len(judged) == 3
    for task in worker.tasks:
        assert task.input_str.count(head) == task.input_str.count(tail) == (0 if raw else 1)
        assert task.input_str.endswith(tail) is not raw
        assert task.input_str.count("Question 7") == 1
        assert task.input_str.count(" Box it.") == (0 if raw else 1)
        assert task.input_tokens
    question = GenerationTask.create_from_prompt("Question 7")
    prompting.apply(question, raw=raw)
    assert all(task.input_tokens == question.input_tokens for task in judged)


def test_many_tasks_of_one_request_run_each_alone():
    tasks = [GenerationTask.create_from_prompt(f"Question {number}") for number in range(2)]
    controller = TreeInferenceController(MCTSController(NativeGenerationController(), max_iterations=3))
    [process] = controller.process(tasks)
    assert len(process.sub_gens) == 2
    for sub in process.sub_gens:
        sub.close()


def test_what_is_no_controller_and_what_leaves_no_answer_is_refused_by_name():
    with pytest.raises(ConfigError, match="controller: is a str"):
        TreeInferenceController("MCTS")
    with pytest.raises(ConfigError, match="controller: is a int"):
        ResultRewardController(3)

    class Silent(Controller):
        def process(self, tasks, **kwargs):
            tasks[0].result = None
            yield from ()

    with pytest.raises(NoOutputError, match="Silent left no answer"):
        list(TreeInferenceController(Silent()).process([GenerationTask.create_from_prompt("x")]))


def test_a_stack_file_names_it():
    controller = {"type": "TreeInferenceController", "args": {"controller": {"type": "NativeGenerationController"}}}
    workers = {"generation": {"type": "ScriptedWorker", "args": {"respond": "x"}}}
    with load_stack({"controller": controller, "workers": workers}) as llm:
        assert llm.generate("Question 1").outputs[0].text == "x"
