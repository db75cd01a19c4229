"""Each strategy expands what a plain reference of it expands, on random trees, in any order of `tell`."""

import math
import sys
from collections import Counter

import numpy as np
import pytest

from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.adaptive_branching import AdaptiveBranching
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_first import BestFirst
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.dvts import DVTS
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.particle_filter import ParticleFilter
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase

STRATEGIES = {
    "adaptive_beta": lambda: AdaptiveBranching("beta"),
    "adaptive_gaussian": AdaptiveBranching,
    "adaptive_widening": lambda: AdaptiveBranching("widening"),
    "beam": Beam,
    "beam_leave": lambda: Beam(8, 3, ended="leave"),
    "best_first": BestFirst,
    "best_of_n": BestOfN,
    "dvts": DVTS,
    "mcts": MCTS,
    "mcts_rollouts": lambda: MCTS(rollouts=True),
    "particle_filter": ParticleFilter,
    "particle_filter_paper": lambda: ParticleFilter(
        resampling="multinomial", weighting="product", ended="resampled", temper_below=0.5
    ),
    "particle_gibbs": lambda: ParticleFilter(sweeps=3),
    "rebase_code": Rebase,
    "rebase_paper": lambda: Rebase(allocation="paper"),
}


class World:
    """A random tree: score and end of a node follow from its path and a seed alone."""

    def __init__(self, seed, ends=0.25, levels=None):
        self.seed, self.ends, self.levels = seed, ends, levels

    def score(self, path):
        value = float(np.random.default_rng((self.seed, 1, *path)).random())
        return value if self.levels is None else round(value * self.levels) / self.levels

    def has_ended(self, path):
        return len(path) > 1 and float(np.random.default_rng((self.seed, 2, *path)).random()) < self.ends


def searched(strategy, world, most_nodes=120, order=None):
    """Paths in the order of the rounds, as a search asks for them."""
    search, root, rounds = strategy.begin(Node(), np.random.default_rng(world.seed)), None, []
    root = search.root
    num = 0
    while num < most_nodes:
        nodes = search.ask(most_nodes - num)
        if not nodes:
            break
        num += len(nodes)
        rounds.append([node.path for node in nodes])
        for node in nodes:
            if node.to_end or world.has_ended(node.path):
                node.end()
        told = list(nodes) if order is None else [nodes[at] for at in order.permutation(len(nodes))]
        for node in told:
            search.tell(node, world.score(node.path))
            search.tell(node, 0.123)  # told again: nothing changes
    assert root is search.root
    return rounds


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_order_of_tell_does_not_matter_and_trees_repeat(name):
    for seed in range(12):
        world = World(seed)
        once = searched(STRATEGIES[name](), world)
        assert once == searched(STRATEGIES[name](), world, order=np.random.default_rng(seed))
        paths = [path for level in once for path in level]
        assert len(paths) == len(set(paths)) <= 120
        assert all(path[:-1] in {(), *paths} for path in paths)
        assert not any(world.has_ended(path[:-1]) for path in paths if len(path) > 1), "an ended node was expanded"


def test_what_is_told_wrongly_is_refused():
    search = Beam().begin(Node(), np.random.default_rng(0))
    node = search.ask()[0]
    with pytest.raises(ValueError, match="finite"):
        search.tell(node, math.nan)
    with pytest.raises(ValueError, match="was not asked for"):
        search.tell(Node((7, 7)), 0.5)


def by_score(paths, world):
    return sorted(paths, key=lambda path: (-world.score(path), path))


class Plain:
    """Common to all references: children are numbered in the order in which they are grown."""

    def __init__(self, world):
        self.world, self.count = world, {}

    def grow(self, parent):
        number = self.count[parent] = self.count.get(parent, -1) + 1
        return (*parent, number)

    def ended(self, path, max_depth=40):
        return len(path) >= max_depth or self.world.has_ended(path)


def plain_beam(world, width, keep, compete):
    tree, finished = Plain(world), []
    rounds = [[tree.grow(()) for _ in range(width)]]
    while True:
        level = [path for path in rounds[-1] if compete or not tree.ended(path)]
        kept = by_score(finished + level, world)[:keep]
        finished = [path for path in kept if tree.ended(path)]
        going = [path for path in kept if not tree.ended(path)]
        if not going:
            return rounds
        counts = [width // len(going) + (rank < width % len(going)) for rank in range(len(going))]
        rounds.append([tree.grow(path) for path, num in zip(going, counts, strict=True) for _ in range(num)])


def plain_dvts(world, trees, copies):
    tree = Plain(world)
    rounds = [[tree.grow(()) for _ in range(trees * copies)]]
    while True:
        best = []
        for number in range(trees):
            own = [path for path in rounds[-1] if path[0] // copies == number]
            best += by_score(own, world)[:1]
        going = [path for path in best if not tree.ended(path)]
        if not going:
            return rounds
        rounds.append([tree.grow(path) for path in going for _ in range(copies)])


def plain_rebase(world, width, paper):
    tree, left, temperature = Plain(world), width, 0.1 if paper else 0.2
    rounds = [[tree.grow(()) for _ in range(width)]]
    while True:
        going = by_score([path for path in rounds[-1] if not tree.ended(path, 25)], world)
        left -= len(rounds[-1]) - len(going)
        if left < 1 or not going:
            return rounds
        weights = [math.exp(world.score(path) / temperature) for path in going]
        counts, width_left, sum_left = [], left, sum(weights)
        for weight in weights:
            if paper:
                counts.append(round(left * weight / sum(weights)))
            else:
                counts.append(min(width_left, math.ceil(width_left * weight / sum_left)) if width_left else 0)
                width_left, sum_left = width_left - counts[-1], sum_left - weight
        if not any(counts):
            counts = [1] * left + [0] * len(going)
        rounds.append([tree.grow(path) for path, num in zip(going, counts, strict=False) for _ in range(num)])


def plain_best_first(world, branching, at_once, most):
    tree, leaves, queue, rounds, num = Plain(world), [], [()] * branching, [], 0
    while num < most:
        while len(queue) < min(at_once, most - num) and leaves:
            best = by_score(leaves, world)[0]
            leaves.remove(best)
            queue += [best] * branching
        now, queue = queue[: min(at_once, most - num)], queue[min(at_once, most - num) :]
        if not now:
            break
        rounds.append([tree.grow(parent) for parent in now])
        num += len(now)
        leaves += [path for path in rounds[-1] if not tree.ended(path)]
    return rounds


def plain_uct(world, branching, c, most):
    """One node at a time."""
    tree, visits, totals, rounds = Plain(world), {(): 0}, {(): 0.0}, []

    def children(path):
        return [(*path, number) for number in range(tree.count.get(path, -1) + 1)]

    def is_full(path):
        if tree.ended(path):
            return True
        return len(children(path)) >= branching and all(map(is_full, children(path)))

    while len(rounds) < most and not is_full(()):
        path = ()
        while len(children(path)) >= branching:
            open_ones = [child for child in children(path) if not is_full(child)]
            log_visits = math.log(visits[path])
            path = max(open_ones, key=lambda p: totals[p] / visits[p] + c * math.sqrt(log_visits / visits[p]))
        new = tree.grow(path)
        rounds.append([new])
        for depth in range(len(new) + 1):
            visits[new[:depth]] = visits.get(new[:depth], 0) + 1
            totals[new[:depth]] = totals.get(new[:depth], 0.0) + world.score(new)
    return rounds


@pytest.mark.parametrize("seed", range(5))
def test_levels_are_those_of_the_references(seed):
    world = World(seed)
    plenty = 10**6
    assert searched(Beam(8, 3), world, plenty) == plain_beam(world, 8, 3, compete=True)
    assert searched(Beam(8, 3, ended="leave"), world, plenty) == plain_beam(world, 8, 3, compete=False)
    assert searched(DVTS(3, 4), world, plenty) == plain_dvts(world, 3, 4)
    assert searched(Rebase(), world, plenty) == plain_rebase(world, 16, paper=False)
    assert searched(Rebase(allocation="paper"), world, plenty) == plain_rebase(world, 16, paper=True)
    assert searched(BestFirst(3, at_once=4), world) == plain_best_first(world, 3, 4, 120)
    assert searched(BestOfN(5), world) == [[(number,) for number in range(5)]]


@pytest.mark.parametrize("seed", range(4))
def test_bandits_walk_as_the_references_do(seed):
    world = World(seed)
    assert searched(MCTS(3, at_once=1), world) == plain_uct(world, 3, math.sqrt(2), 120)


def plain_adaptive(world, model, saturation, most):
    """One node at a time; every draw is one call."""
    rng, tree, scores, order = np.random.default_rng(world.seed), Plain(world), {}, []
    k, alpha, c = 1.0, 0.5, math.sqrt(2)

    def beta(values):
        return rng.beta(0.5 + sum(values), 0.5 + len(values) - sum(values))

    def gaussians(groups):
        means = [sum(values) / max(1, len(values)) for values in groups]
        scales = [
            0.1 + sum((x - mean) ** 2 for x in values) + len(values) / (1 + len(values)) * mean**2
            for values, mean in zip(groups, means, strict=True)
        ]
        variances = [scale / rng.chisquare(1 + len(v)) for scale, v in zip(scales, groups, strict=True)]
        return [
            rng.normal(sum(v) / (1 + len(v)), math.sqrt(variance / (1 + len(v))))
            for v, variance in zip(groups, variances, strict=True)
        ]

    def draw(groups):
        return [beta(values) for values in groups] if model == "beta" else gaussians(groups)

    def below(path):
        return [scores[p] for p in order if p[: len(path)] == path]

    def is_left(path):
        values = below(path)
        alike = max(Counter(values).values())
        return tree.ended(path) or (saturation < 1 and len(values) >= 4 and alike >= saturation * len(values))

    while len(order) < most:
        path = ()
        while True:
            own = [p for p in order if p[:-1] == path]
            live = sorted(p for p in own if not is_left(p))
            if not live:
                break
            deeper = [scores[p] for p in order if p[: len(path)] == path and len(p) > len(path) + 1]
            if model == "widening":
                if len(own) < k * max(1, len(own) + len(deeper)) ** alpha:
                    break
                log_visits = math.log(len(own) + len(deeper) + 1)
                worths = [sum(v) / len(v) + c * math.sqrt(log_visits / len(v)) for v in map(below, live)]
            else:
                gen, cont = draw([[scores[p] for p in own], deeper])
                if gen >= cont:
                    break
                worths = draw([below(p) for p in live])
            path = live[worths.index(max(worths))]
        new = tree.grow(path)
        order.append(new)
        scores[new] = world.score(new)
    return [[path] for path in order]


@pytest.mark.parametrize("model", ["gaussian", "beta", "widening"])
def test_adaptive_branching_walks_as_the_reference_does(model):
    for seed in range(8):
        for levels, saturation in ((None, 1.0), (2, 0.75)):  # scores of 0, 0.5 and 1 saturate subtrees
            world = World(seed, levels=levels)
            strategy = AdaptiveBranching(model, saturation=saturation, at_once=1)
            assert searched(strategy, world, 70) == plain_adaptive(world, model, saturation, 70)


def plain_particles(world, num, weighting, ended_rule, resampling, temper_below, max_depth):
    """One sweep, with particles as paths."""
    rng, tree, ended = np.random.default_rng(world.seed), Plain(world), []
    rounds = [[tree.grow(()) for _ in range(num)]]

    def weights(paths, step):
        if weighting == "last":
            raw = [world.score(p) / (1 - world.score(p)) for p in paths]
        else:
            raw = [math.prod(world.score(p[:depth]) for depth in range(1, len(p) + 1)) for p in paths]
        share = sum(raw) ** 2 / sum(w * w for w in raw) / len(raw)
        progress = step / max_depth
        if share < temper_below and progress < 0.5:
            raw = [w ** min(1.0, share / (1 - progress)) for w in raw]
        return [w / sum(raw) for w in raw]

    while True:
        particles = ended + sorted(rounds[-1])
        if all(tree.ended(p, max_depth) for p in particles):
            return rounds
        count = num
        if ended_rule == "stay":
            ended = [p for p in particles if tree.ended(p, max_depth)]
            particles, count = [p for p in particles if not tree.ended(p, max_depth)], num - len(ended)
        own = weights(particles, len(rounds))
        if resampling == "multinomial":
            drawn = sorted(rng.choice(len(own), size=count, p=own))
        else:
            offset, drawn = rng.random(), []
            for number in range(count):
                edge, at = 0.0, -1
                while at < len(own) - 1 and edge <= (offset + number) / count:
                    at += 1
                    edge += own[at]
                drawn.append(at)
        chosen = [particles[at] for at in drawn]
        if ended_rule == "resampled":
            ended = [p for p in chosen if tree.ended(p, max_depth)]
        going = [p for p in chosen if not tree.ended(p, max_depth)]
        if not going:
            return rounds
        rounds.append([tree.grow(p) for p in going])


@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
@pytest.mark.parametrize(("weighting", "ended"), [("last", "stay"), ("product", "resampled"), ("last", "resampled")])
def test_particles_walk_as_the_reference_does(resampling, weighting, ended):
    for seed in range(12):
        for temper_below in (0.0, 0.6):
            strategy = ParticleFilter(6, resampling, weighting, ended, temper_below, max_depth=12)
            expected = plain_particles(World(seed), 6, weighting, ended, resampling, temper_below, 12)
            assert searched(strategy, World(seed), 10**6) == expected


def num_calls(strategy, num_nodes):
    """Calls of functions, Python's and C's, that a strategy makes for so many nodes with random scores."""
    rng, num, calls = np.random.default_rng(0), 0, 0
    search = strategy.begin(Node(), rng)
    scores = rng.random(num_nodes + 64).tolist()

    def watch(frame, event, _):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        while num < num_nodes and (nodes := search.ask(num_nodes - num)):
            for node in nodes:
                if node.to_end:
                    node.end()
                search.tell(node, scores[num])
                num += 1
    finally:
        sys.setprofile(None)
    assert num == num_nodes
    return calls


@pytest.mark.parametrize("name", ["adaptive_beta", "adaptive_gaussian", "adaptive_widening", "best_first", "mcts"])
def test_the_own_work_of_a_strategy_grows_like_n_log_n(name):
    """Within 10 %; a walk over all children would make four times the nodes cost up to 16 times as much."""

    def calls(num):
        strategy = STRATEGIES[name]()
        strategy.max_depth = 11  # a deeper tree costs more a node, however many there are
        return num_calls(strategy, num)

    assert calls(1200) <= 1.1 * 4 * math.log(1200) / math.log(300) * calls(300)


def test_a_saturated_subtree_is_left_alone():
    """Four equal scores below a child of the root are enough."""
    for saturation, most in ((0.75, 4), (1.0, 100)):
        search = AdaptiveBranching("beta", saturation=saturation).begin(Node(), np.random.default_rng(0))
        for _ in range(100):
            for node in search.ask(1):
                search.tell(node, 1.0)
        largest = max(Counter(path[0] for path in search.score).values())
        assert 4 <= largest <= most
    assert largest > 4


def test_a_gibbs_reference_stands_among_the_particles_of_its_own_step():
    """The kept solution is worth so much that all particles of the second sweep are drawn behind it, step by step."""
    search = ParticleFilter(4, sweeps=2, max_depth=4).begin(Node(), np.random.default_rng(0))
    depths, reference = [], None
    while nodes := search.ask():
        if reference is not None and nodes[0].depth > 1:
            depths.append({node.depth for node in nodes})
            assert all(node.path[: node.depth - 1] == reference.path[: node.depth - 1] for node in nodes)
        for node in nodes:
            if node.to_end:
                node.end()
            search.tell(node, 1.0 if node.path == (0,) * node.depth else 0.0)
        if search._sweeps_left and nodes[0].to_end:
            reference = next(node for node in nodes if node.path == (0,) * 4)
    assert depths == [{2}, {3}, {4}]


def test_an_ended_particle_weighs_one_copy_while_the_filter_still_runs():
    search = ParticleFilter(6, sweeps=2, max_depth=3).begin(Node(), np.random.default_rng(0))
    first = search.ask()
    for node in first[:2]:
        node.end()
    for node in first:
        search.tell(node, 0.5)
    assert [search.visits(node) for node in first] == [1.0] * 6
    second = search.ask()
    assert [search.visits(node) for node in first[:2]] == [1.0, 1.0]  # they stay
    assert [search.visits(node) for node in first[2:]] == [0.0] * 4
    ended = [*first[:2], *second]
    for node in second:
        node.end()
        search.tell(node, 0.5)
    assert [search.visits(node) for node in ended] == [1.0] * 6
    search.ask()
    assert [search.visits(node) for node in ended] == [1.0] * 6  # counted once where the sweep is over, too


def test_a_rollout_that_is_lost_leaves_its_node_with_its_own_score():
    search = MCTS(branching=1, rollouts=True).begin(Node(), np.random.default_rng(0))
    (step,) = search.ask(1)
    search.tell(step, 0.75)
    (rollout,) = search.ask(1)
    assert rollout.to_end
    search.drop(rollout)
    assert search.known[step.path].mean == 0.75


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "best_of_n"])
def test_a_search_goes_on_behind_what_is_left_where_nodes_are_lost(name):
    """In every round all nodes but the last are lost: nothing is written below them, and the search does not end."""
    deepest = 0
    for seed in range(6):
        world = World(seed, ends=0.0)
        search, lost, num = STRATEGIES[name]().begin(Node(), np.random.default_rng(seed)), set(), 0
        while num < 60 and (nodes := search.ask(60 - num)):
            num += len(nodes)
            assert not any(each.path in lost for node in nodes for each in node.ancestors())
            *others, left = nodes
            for node in others:
                search.drop(node)
            lost.update(node.path for node in others)
            if left.to_end:
                left.end()
            search.tell(left, world.score(left.path))
        assert search.num_open == 0
        assert num == 60 or "beam" in name or name == "dvts" or "rebase" in name or "particle" in name
        deepest = max(deepest, *map(len, search.score))
        with pytest.raises(ValueError, match="was not asked for"):
            search.tell(others[0] if others else Node((9, 9)), 0.5)
    assert deepest > 2
