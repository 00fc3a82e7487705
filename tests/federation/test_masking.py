"""Masks and shares: exact sums, and what a coalition of agents and the server can compute."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from pcfed.algorithms.grid import Grid
from pcfed.federation.identity import Identity, digest
from pcfed.federation.masking import (
    Announcement,
    Introduction,
    Secrets,
    SecureSumError,
    announce,
    combine,
    commitment,
    context_of,
    group_digest,
    key_of,
    masked,
    open_shares,
    own_mask,
    pair_mask,
    public_bytes,
    threshold,
    unmask,
)
from pcfed.federation.protocol import Message, question_digest

TRAINING, PLACE = "a test", "0 3"
IDENTITIES = [Identity.create() for _ in range(7)]
BOXES = [X25519PrivateKey.generate() for _ in range(7)]
UNLIKELY = 1e-7
"""The p-value below which numbers are not uniform."""

settings.register_profile("few", max_examples=25, deadline=None, derandomize=True)
few_examples = settings.get_profile("few")


class Agents(NamedTuple):
    """Agents that have announced secrets, by name."""

    secrets: dict[str, Secrets]
    announced: dict[str, Announcement]
    boxes: dict[str, X25519PrivateKey]
    t: int

    @property
    def holders(self):
        return sorted(self.announced)

    def shares(self, agent, holders):
        """Return the shares of the two secrets of an agent that some agents hold."""
        found = [
            (
                self.holders.index(holder) + 1,
                *open_shares(TRAINING, self.announced[agent], holder, self.boxes[holder]),
            )
            for holder in holders
        ]
        return [(i, key) for i, key, _ in found], [(i, mask) for i, _, mask in found]

    def key_seed(self, agent, holders):
        return combine(self.shares(agent, holders)[0])

    def mask_seed(self, agent, holders):
        return combine(self.shares(agent, holders)[1])


def agents(m, colluders=1):
    """Return m agents with new secrets."""
    names = [f"agent {i + 1}" for i in range(m)]
    boxes = dict(zip(names, BOXES, strict=False))
    identities = dict(zip(names, IDENTITIES, strict=False))
    group = [Introduction.of(TRAINING, n, identities[n], boxes[n]) for n in names]
    secrets = {name: Secrets.create() for name in names}
    announced = {
        n: announce(TRAINING, n, PLACE, identities[n], secrets[n], group, colluders) for n in names
    }
    return Agents(secrets, announced, boxes, threshold(m, colluders))


def random_integers(seed, *shape):
    return np.random.default_rng(seed).integers(0, 2**64, shape, np.uint64)


sizes_of_groups = st.integers(2, 7).flatmap(
    lambda m: st.tuples(st.just(m), st.integers(0, m - 1)),
)


# -- sums -----------------------------------------------------------------------------------------


@few_examples
@given(
    sizes=sizes_of_groups,
    width=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_the_opened_sum_is_that_of_the_survivors(sizes, width, seed, data):
    m, colluders = sizes
    found = agents(m, colluders)
    names = found.holders
    survivors = data.draw(
        st.lists(st.sampled_from(names), min_size=found.t, max_size=m, unique=True)
    )
    openers = data.draw(st.permutations(survivors))[: found.t]
    context = context_of("train", found.announced.values())
    summands = dict(zip(names, random_integers(seed, m, width), strict=True))
    total = np.zeros(width, np.uint64)
    for name in survivors:
        total += masked(
            summands[name], name, found.secrets[name], found.announced.values(), context
        )
    mask_seeds = {name: found.mask_seed(name, openers) for name in survivors}
    key_seeds = {name: found.key_seed(name, openers) for name in names if name not in survivors}
    opened = unmask(total, found.announced, context, mask_seeds, key_seeds)
    expected = np.sum([summands[name] for name in survivors], axis=0, dtype=np.uint64)
    np.testing.assert_array_equal(opened, expected)
    assert not np.array_equal(total, expected)


@few_examples
@given(m=st.integers(2, 7), width=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_masks_of_a_complete_sum_cancel(m, width, seed):
    found = agents(m)
    context = context_of("audit", found.announced.values())
    summands = random_integers(seed, m, width)
    total = np.zeros(width, np.uint64)
    for name, summand in zip(found.holders, summands, strict=True):
        participants = found.announced.values()
        sent = masked(summand, name, found.secrets[name], participants, context, {})
        assert not np.array_equal(sent, summand)
        total += sent
    np.testing.assert_array_equal(total, summands.sum(axis=0, dtype=np.uint64))


@few_examples
@given(m=st.integers(2, 5), width=st.integers(1, 40), data=st.data())
def test_two_agents_have_opposite_masks_that_depend_on_the_context(m, width, data):
    found = agents(m)
    first, second = data.draw(st.permutations(found.holders))[:2]
    keys = {name: key_of(found.secrets[name].key_seed) for name in (first, second)}
    one = pair_mask(keys[first], first, found.announced[second], "a", width)
    other = pair_mask(keys[second], second, found.announced[first], "a", width)
    np.testing.assert_array_equal(one + other, np.zeros(width, np.uint64))
    again = pair_mask(keys[first], first, found.announced[second], "b", width)
    assert not np.array_equal(one, again)
    seed = found.secrets[first].mask_seed
    assert not np.array_equal(own_mask(seed, "a", width), own_mask(seed, "b", width))


@given(
    numbers=st.lists(st.lists(st.floats(-1e5, 1e5), min_size=3, max_size=3), min_size=2, max_size=5)
)
@few_examples
def test_sums_of_rounded_numbers_are_exact(numbers):
    rows = np.array(numbers)
    found, grid = agents(len(rows)), Grid(2.0**-32, len(rows))
    context = context_of("train", found.announced.values())
    total = np.zeros(3, np.uint64)
    for name, row in zip(found.holders, rows, strict=True):
        integers = grid.encode("dz", row)
        total += masked(integers, name, found.secrets[name], found.announced.values(), context, {})
    rounded = np.rint(rows / grid.step).astype(np.int64).sum(axis=0)
    np.testing.assert_array_equal(grid.decode("dz", total), rounded * grid.step)


# -- shares ---------------------------------------------------------------------------------------


@few_examples
@given(sizes=sizes_of_groups, data=st.data())
def test_t_shares_open_a_secret_and_fewer_do_not(sizes, data):
    m, colluders = sizes
    found = agents(m, colluders)
    agent = data.draw(st.sampled_from(found.holders))
    holders = data.draw(st.permutations(found.holders))[: found.t]
    secrets = found.secrets[agent]
    assert found.key_seed(agent, holders) == secrets.key_seed
    assert found.mask_seed(agent, holders) == secrets.mask_seed
    assert commitment(secrets.mask_seed) == found.announced[agent].commitment
    assert public_bytes(key_of(secrets.key_seed)).hex() == found.announced[agent].mask_key
    if len(holders) > 1:
        assert found.key_seed(agent, holders[:-1]) != secrets.key_seed
        assert found.mask_seed(agent, holders[:-1]) != secrets.mask_seed


def test_no_two_sets_of_openers_have_only_colluders_in_common():
    for n in range(1, 40):
        for colluders in range(n):
            t = threshold(n, colluders)
            assert 2 * t > n + colluders
            assert 2 * (t - 1) <= n + colluders
            assert t <= n
            assert t > colluders  # colluders alone open nothing
            # Beside the colluders there are two agents in every sum, unless there are too few.
            assert t - colluders >= 2 or n < colluders + 2


def test_shares_are_for_one_holder():
    found = agents(4)
    announcement = found.announced["agent 1"]
    for holder in found.holders:
        for other in found.holders:
            if other == holder:
                continue
            with pytest.raises(SecureSumError, match="the shares of agent 1 can't be opened"):
                open_shares(TRAINING, announcement, holder, found.boxes[other])
            swapped = replace(announcement, shares={holder: announcement.shares[other]})
            with pytest.raises(SecureSumError, match="can't be opened"):
                open_shares(TRAINING, swapped, holder, found.boxes[holder])
            with pytest.raises(SecureSumError, match="can't be opened"):
                open_shares(TRAINING, swapped, holder, found.boxes[other])


def test_shares_belong_to_one_announcement_and_training():
    found, later = agents(3), agents(3)
    name, box = "agent 2", found.boxes["agent 2"]
    mine = found.announced["agent 1"]
    assert open_shares(TRAINING, mine, name, box)
    for wrong in (
        replace(mine, shares=later.announced["agent 1"].shares),
        replace(mine, shares=found.announced["agent 3"].shares),
        replace(mine, shares={}),
        replace(mine, shares={name: ""}),
        replace(mine, shares={name: "no hexadecimal number"}),
        replace(mine, shares={name: mine.shares[name][:-2]}),
        replace(mine, share_key="00" * 32),
        replace(mine, share_key="ab"),
        replace(mine, place="0 4"),
        replace(mine, name="agent 3"),
    ):
        with pytest.raises(SecureSumError, match="can't be opened"):
            open_shares(TRAINING, wrong, name, box)
    with pytest.raises(SecureSumError, match="can't be opened"):
        open_shares("another", mine, name, box)


@given(bit=st.integers(0, 8 * 48 - 1))
@few_examples
def test_a_share_with_a_changed_bit_is_refused(bit):
    found = agents(2)
    mine = found.announced["agent 1"]
    changed = bytearray.fromhex(mine.shares["agent 2"])
    changed[bit // 8] ^= 1 << (bit % 8)
    wrong = replace(mine, shares={"agent 2": changed.hex()})
    with pytest.raises(SecureSumError):
        open_shares(TRAINING, wrong, "agent 2", found.boxes["agent 2"])


# -- signatures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["name", "place", "group", "mask_key", "commitment", "share_key", "signature"]
)
def test_an_announcement_with_a_changed_field_is_not_valid(field):
    found = agents(2).announced["agent 1"]
    assert found.is_valid(TRAINING, IDENTITIES[0].public)
    value = getattr(found, field)
    last = "0" if value[-1] != "0" else "1"
    assert not replace(found, **{field: value[:-1] + last}).is_valid(TRAINING, IDENTITIES[0].public)
    other = agents(2).announced["agent 2"]
    if getattr(other, field) != value:
        mixed = replace(found, **{field: getattr(other, field)})
        assert not mixed.is_valid(TRAINING, IDENTITIES[0].public)
    assert not found.is_valid(TRAINING, IDENTITIES[1].public)
    assert not found.is_valid("another", IDENTITIES[0].public)


def test_fields_can_not_be_shifted():
    """What ends one field and begins the next is part of what is signed."""
    found = agents(2).announced["agent 1"]
    shifted = replace(found, name=found.name + found.place[0], place=found.place[1:])
    assert not shifted.is_valid(TRAINING, IDENTITIES[0].public)


def test_an_introduction_with_a_changed_field_is_not_valid():
    found = Introduction.of(TRAINING, "agent 1", IDENTITIES[0], BOXES[0])
    assert found.is_valid(TRAINING)
    assert not found.is_valid("another")
    for wrong in (
        found._replace(name="agent 2"),
        found._replace(identity=IDENTITIES[1].public),
        found._replace(identity="no key"),
        found._replace(box=public_bytes(BOXES[1]).hex()),
        found._replace(signature=found.signature[:-2] + "00"),
        found._replace(signature=""),
    ):
        assert not wrong.is_valid(TRAINING)


def test_a_group_depends_on_keys_and_colluders_and_not_on_the_order():
    first, second = (
        Introduction.of(TRAINING, f"agent {i + 1}", IDENTITIES[i], BOXES[i]) for i in range(2)
    )
    group = group_digest([first, second], 1)
    assert group == group_digest([second, first], 1)
    other = second._replace(box=public_bytes(BOXES[2]).hex())
    different = [
        group_digest([first, second], 0),
        group_digest([first], 1),
        group_digest([first, other], 1),
        group_digest([first, second._replace(name="agent 3")], 1),
    ]
    assert len({group, *different}) == 5


def test_a_context_depends_on_all_circumstances():
    found = agents(3).announced
    everybody = list(found.values())
    context = context_of("train", everybody)
    assert context == context_of("train", everybody[::-1])
    different = [
        context_of("another question", everybody),
        context_of("train", everybody[:2]),
        context_of("train", [*everybody[:2], agents(3).announced["agent 3"]]),
    ]
    assert len({context, *different}) == 4


def test_a_question_is_all_that_is_asked_of_everybody():
    def question(kind="train", vectors=None, **metadata):
        asked = {"training": "heating", "round": 3, "grid": 0.5, "model": "x", "position": 1}
        sent = {"z": np.arange(3.0)} if vectors is None else vectors
        return question_digest(Message(kind, {**asked, **metadata}, sent))

    assert question() == question(position=2, accepted_round=2, participants="[]")
    different = [
        question("audit"),
        question(training="cooling"),
        question(round=4),
        question(grid=0.25),
        question(model="y"),
        question(colluders=0),
        question(vectors={"z": -np.arange(3.0)}),
        question(vectors={"z": np.array([0.0, 1.0, 2.0 + 1e-15])}),
        question(vectors={"y": np.arange(3.0)}),
        question(vectors={}),
    ]
    assert question(vectors={"z": np.arange(3.0)}) == question()
    assert len({question(), *different}) == len(different) + 1


# -- what a coalition learns ----------------------------------------------------------------------


def p_value(numbers):
    """Return the p-value of the top four bits of integers as uniform numbers."""
    counts = np.bincount((np.concatenate(numbers) >> np.uint64(60)).astype(int), minlength=16)
    return chisquare(counts).pvalue


SUMMAND = Grid(2.0**-32, 5).encode("dz", np.linspace(-3, 3, 64))
VICTIM, ABSENT, COLLUDER = "agent 1", "agent 2", "agent 5"
NAMES = [f"agent {i + 1}" for i in range(5)]


def without_known_masks(sent, found, context, *, own=None, keys=None):
    """Return what the victim sent without all masks whose seeds are known."""
    rest = sent.copy()
    if own is not None:
        rest -= own_mask(own, context, rest.size)
    for name, seed in (keys or {}).items():
        # It is the negative of what the victim has added.
        rest += pair_mask(key_of(seed), name, found.announced[VICTIM], context, rest.size)
    return rest


def attacked(found):
    """Return what the victim sends, and the context."""
    context = context_of("train", found.announced.values())
    participants = found.announced.values()
    return masked(SUMMAND, VICTIM, found.secrets[VICTIM], participants, context), context


@pytest.mark.parametrize(("m", "c"), [(5, 1), (6, 2), (7, 3)])
def test_a_coalition_finds_uniform_numbers_in_place_of_a_summand(m, c):
    """Colluders and the server, with all that t agents reveal when they open the sum."""
    remainders, guesses, exact = [], [], []
    names = [f"agent {i + 1}" for i in range(m)]
    colluders = names[-c:]
    for _ in range(60):
        found = agents(m, c)
        sent, context = attacked(found)
        survivors = [name for name in names if name != ABSENT]
        # The survivors open the sum: own masks of survivors, and the key of the absent one.
        own = found.mask_seed(VICTIM, survivors[: found.t])
        keys = {ABSENT: found.key_seed(ABSENT, survivors[: found.t])}
        keys |= {name: found.secrets[name].key_seed for name in colluders}
        remainders.append(without_known_masks(sent, found, context, own=own, keys=keys))
        # Of the keys of the others it has only the colluders' own shares, and no honest ones.
        rest = [name for name in survivors if name not in (VICTIM, *colluders)]
        assert rest
        wrong = {name: found.key_seed(name, colluders) for name in rest}
        guesses.append(without_known_masks(sent, found, context, own=own, keys=keys | wrong))
        # The control: with t shares of every key, the summand comes out.
        right = {name: found.key_seed(name, names[: found.t]) for name in rest}
        exact.append(without_known_masks(sent, found, context, own=own, keys=keys | right))
    assert p_value(remainders) > UNLIKELY
    assert p_value(guesses) > UNLIKELY
    assert all(np.array_equal(each, SUMMAND) for each in exact)
    assert p_value(exact) < UNLIKELY
    assert len({each.tobytes() for each in remainders}) == 60


@pytest.mark.parametrize(("m", "c"), [(3, 1), (5, 3), (7, 2)])
def test_nor_does_a_coalition_in_a_sum_over_all_agents(m, c):
    """There the colluders know their keys and histories, and nothing is opened."""
    remainders, exact = [], []
    names = [f"agent {i + 1}" for i in range(m)]
    history = dict.fromkeys(names, "the sums that both have committed")
    for _ in range(60):
        found = agents(m, c)
        announced = found.announced.values()
        context = context_of("gap_term", announced)
        sent = masked(SUMMAND, VICTIM, found.secrets[VICTIM], announced, context, history)
        for known, rests in ((names[-c:], remainders), (names[1:], exact)):
            rest = sent.copy()
            for name in known:
                about = digest("history", context, history[name]).hex()
                key = key_of(found.secrets[name].key_seed)
                rest += pair_mask(key, name, found.announced[VICTIM], about, rest.size)
            rests.append(rest)
    assert p_value(remainders) > UNLIKELY
    assert len({each.tobytes() for each in remainders}) == 60
    assert all(np.array_equal(each, SUMMAND) for each in exact)


def test_the_sum_of_honest_survivors_is_all_that_is_learned():
    """Two sets of honest summands with the same sum give the same numbers after unmasking."""
    found = agents(5)
    sent, context = attacked(found)
    honest = ["agent 3", "agent 4"]
    others = {
        name: masked(SUMMAND, name, found.secrets[name], found.announced.values(), context)
        for name in honest
    }
    keys = {name: found.secrets[name].key_seed for name in (ABSENT, COLLUDER)}
    total = without_known_masks(
        sent, found, context, own=found.secrets[VICTIM].mask_seed, keys=keys
    )
    for name, each in others.items():
        total += each - own_mask(found.secrets[name].mask_seed, context, each.size)
        for other, seed in keys.items():
            announcement = found.announced[name]
            total += pair_mask(key_of(seed), other, announcement, context, each.size)
    np.testing.assert_array_equal(total, np.uint64(3) * SUMMAND)


def test_a_late_update_of_an_absent_agent_is_useless():
    """The server has the key of an agent that it declared absent, and then its update arrives."""
    remainders, exact = [], []
    for _ in range(60):
        found = agents(5)
        sent, context = attacked(found)
        openers = [name for name in NAMES if name != VICTIM][: found.t]
        key = key_of(found.key_seed(VICTIM, openers))
        rest = sent.copy()
        for name in NAMES[1:]:
            rest -= pair_mask(key, VICTIM, found.announced[name], context, rest.size)
        remainders.append(rest)
        # The control: with shares of the own mask too, which no honest agent gives any more.
        exact.append(rest - own_mask(found.mask_seed(VICTIM, openers), context, rest.size))
    assert p_value(remainders) > UNLIKELY
    assert all(np.array_equal(each, SUMMAND) for each in exact)


def test_a_mask_that_is_used_twice_is_no_mask():
    """Why an agent masks one vector with a secret: the difference of two has no masks."""
    found = agents(3)
    context = context_of("train", found.announced.values())
    first, second = (
        masked(vector, VICTIM, found.secrets[VICTIM], found.announced.values(), context)
        for vector in (SUMMAND, np.uint64(2) * SUMMAND)
    )
    np.testing.assert_array_equal(second - first, SUMMAND)
