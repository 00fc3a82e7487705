"""An agent's rules in secure sums: each test does what a dishonest server could try."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable

import numpy as np
import pytest

from pcfed.federation.identity import Identity, Roster
from pcfed.federation.masking import (
    Announcement,
    SecureSumError,
    combine,
    key_of,
    own_mask,
    pair_mask,
    threshold,
)
from pcfed.federation.protocol import Message
from pcfed.federation.secure_agent import SecureAgent

NAMES = ("east", "north", "south", "west")
IDENTITIES = {name: Identity.create() for name in (*NAMES, "stranger")}
T = threshold(len(NAMES), 1)
SUMMANDS = {name: np.arange(5, dtype=np.uint64) * np.uint64(i + 1) for i, name in enumerate(NAMES)}
TOTAL = np.sum(list(SUMMANDS.values()), axis=0, dtype=np.uint64)


def message(kind, place=(0, 0), vectors=None, **metadata):
    common = {
        "training": "a test",
        "m": len(NAMES),
        "rollbacks": place[0],
        "round": place[1],
        "colluders": 1,
        "accepted_round": -1,
        "grid": 0.5,
    }
    return Message(kind, common | metadata, vectors or {})


class Agents:
    """Four agents, and a server that asks them whatever a test wants."""

    def __init__(self, folder, roster=None):
        self.folder = folder
        self.agents = {
            name: SecureAgent(name, IDENTITIES[name], folder / f"{name}.json", roster)
            for name in NAMES
        }
        self.group = [self.introduction(name) for name in NAMES]
        self.history = {name: {} for name in NAMES}

    def __getitem__(self, name):
        return self.agents[name]

    def contents(self, name):
        return (self.folder / f"{name}.json").read_bytes()

    def introduction(self, name, place=(0, 0)):
        reply = self.agents[name].introduce(message("introduce", place))
        return json.loads(reply["introduction"])

    def announce(self, kind="shared", place=(0, 0), names=NAMES, group=None, **metadata):
        """Return new announcements by agent."""
        text = json.dumps(self.group if group is None else group)
        asked = message("announce", place, group=text, next_place=f"{place[0]} {place[1]}")
        asked = Message("announce", {**asked.metadata, **metadata})
        replies = {name: self.agents[name].announce(asked) for name in names}
        return {n: Announcement(**json.loads(r["announcements"])[kind]) for n, r in replies.items()}

    def mask(self, name, announced, place=(0, 0), kind="train", summand=None, **metadata):
        """Return an agent's masked summand, and the context of the sum."""
        listed = json.dumps([each.public for each in announced.values()])
        history = None
        if kind != "train":
            # All updates so far were accepted.
            metadata = {"accepted_round": place[1] - 1} | metadata
            metadata = {"next_place": f"{place[0]} {place[1]}"} | metadata
            history = self.history[name]
        asked = message(kind, place, participants=listed, **metadata)
        found = SUMMANDS[name] if summand is None else summand
        masked, more = self.agents[name].mask(asked, found, history)
        return masked, more.get("context")

    def commit(self, name, index, context, survivors):
        """Tell an agent that its update of a round counts."""
        text = json.dumps({"context": context, "survivors": list(survivors)})
        asked = message("audit", (0, index + 1), accepted_round=index, accepted_sum=text)
        self.history[name] = self.agents[name].commit(asked, self.history[name])

    def complete_sum(self, place, **metadata):
        """Return the sum of all agents' answers to an audit, and whether the masks cancel."""
        announced = self.announce("complete", place)
        sent = [self.mask(name, announced, place, "audit", **metadata)[0] for name in NAMES]
        total = np.sum(sent, axis=0, dtype=np.uint64)
        return total[:-1], total[-1] == 0

    def train(self, announced, names=NAMES, place=(0, 0)):
        """Return the masked summands of agents, and the context of the sum."""
        found = {name: self.mask(name, announced, place) for name in names}
        (context,) = {context for _, context in found.values()}
        return {name: masked for name, (masked, _) in found.items()}, context

    def asked(self, kind, context, survivors, place=(0, 0), **metadata):
        text = json.dumps(list(survivors))
        purpose = f"train {place[0]} {place[1]}"
        more = {"purpose": purpose, "context": context, "survivors": text} | metadata
        return message(kind, place, **more)

    def confirm(self, name, context, survivors, place=(0, 0), **metadata):
        asked = self.asked("confirm", context, survivors, place, **metadata)
        return self.agents[name].confirm(asked)["signature"]

    def signatures(self, context, survivors, names=None, place=(0, 0)):
        return {n: self.confirm(n, context, survivors, place) for n in names or survivors}

    def unmask(self, name, context, survivors, signatures, announced, place=(0, 0), **metadata):
        shares = {other: each.shares.get(name, "") for other, each in announced.items()}
        texts = {"signatures": json.dumps(signatures), "shares": json.dumps(shares)} | metadata
        reply = self.agents[name].unmask(self.asked("unmask", context, survivors, place, **texts))
        return json.loads(reply["mask_shares"]), json.loads(reply["key_shares"])

    def refuses(self, name, match, call: Callable, *arguments, **options):
        """Check that an agent refuses a message, and that nothing changes on its disk."""
        before = self.contents(name)
        with pytest.raises(SecureSumError, match=match):
            call(*arguments, **options)
        assert self.contents(name) == before


@pytest.fixture
def agents(tmp_path):
    return Agents(tmp_path)


def opened(agents, announced, survivors, place=(0, 0)):
    """Run a sum of these survivors to its end; return the context and the signatures."""
    _, context = agents.train(announced, place=place)
    signatures = agents.signatures(context, survivors, place=place)
    for name in survivors:
        agents.unmask(name, context, survivors, signatures, announced, place)
    return context, signatures


def test_a_sum_that_follows_the_rules(agents):
    announced = agents.announce()
    masked, context = agents.train(announced)
    survivors = ["east", "north", "west"]
    signatures = agents.signatures(context, survivors)
    answers = {n: agents.unmask(n, context, survivors, signatures, announced) for n in survivors}
    positions = {name: i + 1 for i, name in enumerate(NAMES)}
    total = np.sum([masked[name] for name in survivors], axis=0, dtype=np.uint64)
    for name in survivors:
        shares = [(positions[n], bytes.fromhex(masks[name])) for n, (masks, _) in answers.items()]
        total -= own_mask(combine(shares), context, 5)
        assert all(name not in keys for _, keys in answers.values())
    shares = [(positions[n], bytes.fromhex(keys["south"])) for n, (_, keys) in answers.items()]
    key = key_of(combine(shares))
    for name in survivors:
        total += pair_mask(key, "south", announced[name], context, 5)
    expected = np.sum([SUMMANDS[name] for name in survivors], axis=0, dtype=np.uint64)
    np.testing.assert_array_equal(total, expected)
    assert all("south" not in masks for masks, _ in answers.values())


def test_only_the_owner_may_read_the_secrets(agents):
    agents.announce()
    for name in NAMES:
        assert (agents.folder / f"{name}.json").stat().st_mode & 0o777 == 0o600


def test_nobody_else_may_read_a_file_that_is_not_renamed_yet(agents, monkeypatch):
    modes, rename = [], os.replace

    def recorded(draft, path):
        modes.append(draft.stat().st_mode & 0o777)
        rename(draft, path)

    monkeypatch.setattr(os, "replace", recorded)
    agents.announce()
    assert modes == [0o600] * len(NAMES)


def test_an_older_copy_of_the_secrets_is_not_advised(agents):
    """It would use secrets twice."""
    path = agents.folder / "west.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="restore the newest copy: an older one forgets"):
        agents.introduction("west")


# -- rule 1: a secret is for one vector in one sum ------------------------------------------------


def test_a_secret_serves_once(agents):
    """Two sums with one secret: the key is opened in one of them, the own mask in the other."""
    announced, others = agents.announce(), agents.announce()
    agents.mask("west", announced)
    mixed = others | {"west": announced["west"]}
    agents.refuses("west", "announcement of west was used before", agents.mask, "west", mixed)
    fewer = {name: announced[name] for name in NAMES if name != "south"}
    agents.refuses("west", "was used before", agents.mask, "west", fewer)


def test_an_announcement_of_another_agent_serves_once(agents):
    announced, others = agents.announce(), agents.announce()
    agents.mask("west", announced)
    mixed = others | {"east": announced["east"]}
    agents.refuses("west", "announcement of east was used before", agents.mask, "west", mixed)
    agents.mask("west", others)


def test_the_same_question_has_the_same_answer_and_another_vector_none(agents):
    """The difference of two vectors with the same masks is the difference of the summands."""
    announced = agents.announce()
    first, again = (agents.mask("west", announced)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, SUMMANDS["west"])
    changed = np.uint64(2) * SUMMANDS["west"]
    agents.refuses(
        "west", "used for another vector", agents.mask, "west", announced, summand=changed
    )


@pytest.mark.parametrize("kind", ["train", "audit", "objective_terms"])
@pytest.mark.parametrize("key", ["grid", "step", "vectors"])
def test_a_question_can_not_change_in_a_round(agents, kind, key):
    """With the grid twice as fine, the integers double, and the masks would not."""
    which = "shared" if kind == "train" else "complete"
    announced, others = agents.announce(which), agents.announce(which)
    more: dict = {key: {"x": np.ones(2)} if key == "vectors" else 0.25}
    agents.mask("west", announced, kind=kind)
    refused = "changed the setting grid" if key == "grid" else "another question"
    for each in (announced, others):
        agents.refuses("west", refused, agents.mask, "west", each, kind=kind, **more)
    if kind == "train":
        agents.mask("west", others)


@pytest.mark.parametrize("kind", ["train", "audit"])
def test_masks_cancel_only_among_agents_that_are_asked_the_same(agents, kind):
    """A server sends all but one agent a question to which it knows the answer."""
    zero, complete = np.zeros(5, np.uint64), kind != "train"
    for change in (False, True):
        announced = agents.announce("complete" if complete else "shared", (0, int(change)))
        total, contexts = np.zeros(5 + complete, np.uint64), set()
        for name in NAMES:
            more = {"step": 0.0} if change and name != "west" else {"step": 5.0}
            summand = SUMMANDS["west"] if name == "west" else zero
            place = (0, int(change))
            sent, context = agents.mask(name, announced, place, kind, summand=summand, **more)
            total += sent
            contexts.add(context)
        if complete:
            assert np.array_equal(total[:5], SUMMANDS["west"]) == (not change)
        else:
            assert len(contexts) == 1 + change


def test_what_is_different_for_every_agent_may_change(agents):
    agents.mask("west", agents.announce(), position=1, accepted_round=3)
    agents.mask("west", agents.announce(position=1), position=1, accepted_round=2)


TERMS = {"grid": 0.25, "position": 2, "seed": 1, "algorithm": "FedAvg", "parameters": "{}"}
TERMS |= {"center": "average", "steps": 3, "model": "{}", "scaling": "{}"}


@pytest.mark.parametrize("key", TERMS)
def test_the_settings_of_a_training_can_not_change(agents, key):
    first = {"grid": 0.5, "position": 1, "seed": 0, "algorithm": "PCFedAvg", "parameters": "[]"}
    first |= {"center": "free", "steps": 5, "model": "[]", "scaling": "[]"}
    agents.mask("west", agents.announce(), **first)
    refused, place = f"changed the setting {key} of the training", (0, 1)
    for changed in ({**first, key: TERMS[key]}, {k: v for k, v in first.items() if k != key}):
        if key == "grid" and key not in changed:
            continue  # without it there is no secure sum
        announced = agents.announce(place=place, **first)
        agents.refuses("west", refused, agents.mask, "west", announced, place, **changed)
        asked = message("introduce", place, **changed)
        agents.refuses("west", refused, agents["west"].introduce, asked)
    agents.mask("west", agents.announce(place=place, **first), place, **first)


@pytest.mark.parametrize("position", [-1, 4, 2**40])
def test_a_position_is_one_of_the_training(agents, position):
    """With any number, a server could let some agents draw the batches of an earlier round."""
    options = {"position": position}
    agents.refuses("west", "its position", agents.mask, "west", agents.announce(), **options)


@pytest.mark.parametrize("place", [(0, 2**31), (2**31, 0), (-1, 0), (0, -1)])
def test_rounds_are_numbers_that_can_be(agents, place):
    agents.refuses("west", "round that can't be|is over", agents.introduction, "west", place)


def test_a_server_can_not_try_many_limits_in_a_round(agents):
    agents.mask("west", agents.announce(), norm_limit=1.0)
    options = {"norm_limit": 9.0}
    agents.refuses("west", "another question", agents.mask, "west", agents.announce(), **options)


def test_announcements_are_for_one_round(agents):
    announced = agents.announce()
    agents.refuses("west", "for another sum", agents.mask, "west", announced, (0, 1))
    agents.refuses("west", "for another sum", agents.mask, "west", announced, (1, 0))
    fresh = agents.announce(place=(0, 1))
    mixed = fresh | {"east": announced["east"]}
    agents.refuses("west", "announcement of east is for", agents.mask, "west", mixed, (0, 1))


@pytest.mark.parametrize("field", ["place", "group", "mask_key", "commitment", "share_key"])
def test_announcements_must_be_signed(agents, field):
    announced, others = agents.announce(), agents.announce()
    wrong = {**announced["east"].public, field: others["east"].public[field]}
    if field in ("place", "group"):
        wrong[field] = "0 1"
    mixed = announced | {"east": Announcement(**wrong)}
    agents.refuses("west", "east is not signed by it", agents.mask, "west", mixed)
    renamed = announced | {"east": Announcement(**{**announced["north"].public, "name": "east"})}
    agents.refuses("west", "east is not signed by it", agents.mask, "west", renamed)


def test_an_agent_must_be_in_a_sum_once_with_its_own_secret(agents):
    announced = agents.announce()
    without = {name: announced[name] for name in NAMES[:3]}
    agents.refuses("west", "none of its own secrets", agents.mask, "west", without)
    twice = announced | {"again": announced["east"]}
    agents.refuses("west", "an agent is there twice", agents.mask, "west", twice)
    few = {name: announced[name] for name in ("east", "west")}
    agents.refuses("west", "2 agents are too few", agents.mask, "west", few)


# -- rules 2 to 4: opening ------------------------------------------------------------------------


def test_one_list_of_survivors_is_signed(agents):
    """With two lists, own masks of all agents would be opened by one, and keys by the other."""
    announced = agents.announce()
    _, context = agents.train(announced)
    agents.confirm("west", context, NAMES)
    assert agents.confirm("west", context, NAMES)
    other = ["east", "north", "west"]
    agents.refuses("west", "signed another list", agents.confirm, "west", context, other)


def test_one_list_of_survivors_is_opened(agents):
    announced = agents.announce()
    context, signatures = opened(agents, announced, NAMES)
    first, again = (agents.unmask("west", context, NAMES, signatures, announced) for _ in range(2))
    assert first == again
    fewer = ["east", "north", "west"]
    forged = {n: IDENTITIES[n].sign("survivors", context, *fewer).hex() for n in fewer}
    arguments = "west", context, fewer, forged, announced
    agents.refuses("west", "opened another sum of this round", agents.unmask, *arguments)


def test_of_two_attempts_at_a_round_one_is_opened(agents):
    """The difference of two sums over different agents would be the summand of one."""
    first, second = agents.announce(), agents.announce()
    _, one = agents.train(first)
    _, two = agents.train(second)
    fewer = ["east", "north", "west"]
    signed = agents.signatures(one, NAMES), agents.signatures(two, fewer)
    agents.unmask("west", one, NAMES, signed[0], first)
    arguments = "west", two, fewer, signed[1], second
    agents.refuses("west", "opened another sum of this round", agents.unmask, *arguments)


def test_an_agent_sits_out_repeats_of_a_round_that_it_has_opened(agents):
    announced = agents.announce()
    opened(agents, announced, NAMES)
    agents.refuses("west", "sits out repeats", agents.mask, "west", agents.announce())
    agents.mask("west", announced)  # the same once more
    agents.mask("west", agents.announce(place=(0, 1)), (0, 1))


def test_a_repeat_without_the_announcement_of_an_absent_agent(agents):
    """South is absent in one attempt; its late update must not be opened by the next one."""
    announced = agents.announce()
    survivors = ["east", "north", "west"]
    context, _ = opened(agents, announced, survivors)
    forged = {n: IDENTITIES[n].sign("survivors", context, *NAMES).hex() for n in NAMES}
    arguments = "west", context, NAMES, forged, announced
    agents.refuses("west", "opened another sum", agents.unmask, *arguments)


def test_t_valid_signatures_are_needed(agents):
    announced = agents.announce()
    _, context = agents.train(announced)
    valid = agents.signatures(context, NAMES)
    fewer = ["east", "north", "west"]
    few = dict(list(valid.items())[: T - 1])
    cases = {
        "too few": few,
        "none": {},
        "of another agent": few | {"west": valid["east"]},
        "of somebody else": few | {"stranger": sign("stranger", context, NAMES)},
        "for another context": few | {"west": sign("west", "ab", NAMES)},
        "for another list": few | {"west": sign("west", context, fewer)},
        "of something else": few | {"west": IDENTITIES["west"].sign(context, *NAMES).hex()},
        "empty": few | {"west": ""},
    }
    for signatures in cases.values():
        arguments = "west", context, NAMES, signatures, announced
        agents.refuses("west", "2 agents have signed|0 agents have", agents.unmask, *arguments)
    agents.unmask("west", context, NAMES, dict(list(valid.items())[:T]), announced)


def sign(name, context, survivors):
    return IDENTITIES[name].sign("survivors", context, *survivors).hex()


@pytest.mark.parametrize(
    ("survivors", "match"),
    [
        (["north", "west"], "2 agents are in the sum, and 3 must be"),
        (["west"], "1 agents are in the sum"),
        (["east", "north", "south"], "it is not in the sum"),
        ([*NAMES, "zebra"], "list of those who are in the sum is not right"),
        (["east", "north", "north", "west"], "is not right"),
        (["west", "north", "east"], "is not right"),
        ([], "it is not in the sum"),
    ],
)
def test_lists_of_survivors_that_are_refused(agents, survivors, match):
    announced = agents.announce()
    _, context = agents.train(announced)
    agents.refuses("west", match, agents.confirm, "west", context, survivors)
    signatures = {n: sign(n, context, survivors) for n in NAMES}
    arguments = "west", context, survivors, signatures, announced
    agents.refuses("west", match, agents.unmask, *arguments)


def test_only_sums_in_which_the_agent_took_part(agents):
    announced = agents.announce()
    _, context = agents.train(announced, NAMES[:3])
    signatures = agents.signatures(context, NAMES[:3])
    agents.refuses("west", "not taken part", agents.confirm, "west", context, NAMES)
    arguments = "west", context, NAMES, signatures, announced
    agents.refuses("west", "not taken part", agents.unmask, *arguments)
    options = {"purpose": "audit 0 0"}
    agents.refuses("east", "not taken", agents.confirm, "east", context, NAMES, **options)


def test_shares_are_of_the_announcements_in_the_sum(agents):
    """Shares of another round or attempt can't be opened under the names of this one."""
    old = agents.announce()
    announced = agents.announce()
    survivors = ["east", "north", "west"]
    _, context = agents.train(announced)
    signatures = agents.signatures(context, survivors)
    masks, keys = agents.unmask("west", context, survivors, signatures, old)
    assert (masks, keys) == ({}, {})
    swapped = announced | {"south": announced["east"], "east": announced["south"]}
    masks, keys = agents.unmask("west", context, survivors, signatures, swapped)
    assert (set(masks), keys) == ({"north", "west"}, {})
    masks, keys = agents.unmask("west", context, survivors, signatures, announced)
    assert (set(masks), set(keys)) == (set(survivors), {"south"})


# -- rule 5: sums over the full roster ------------------------------------------------------------


def test_secrets_with_shares_are_not_for_complete_sums(agents):
    """In a complete sum there is no own mask: whoever opens the key has the summand."""
    shared = agents.announce()
    agents.refuses(
        "west", "secret is for sums of another kind", agents.mask, "west", shared, kind="audit"
    )
    complete = agents.announce("complete")
    agents.refuses("west", "for sums of another kind", agents.mask, "west", complete)


def test_a_complete_sum_is_over_all_agents(agents):
    announced = agents.announce("complete")
    fewer = {name: announced[name] for name in NAMES[1:]}
    agents.refuses("west", "over the full roster", agents.mask, "west", fewer, kind="audit")


def test_there_are_no_more_agents_than_the_training_has(tmp_path):
    """With five agents and m = 4, differences of two sums over four agents have two summands."""
    agents = Agents(tmp_path)
    fifth = SecureAgent("stranger", IDENTITIES["stranger"], tmp_path / "stranger.json")
    stranger = json.loads(fifth.introduce(message("introduce"))["introduction"])
    agents.announce()
    group = [*agents.group[1:], stranger]
    options = {"names": ["west"], "group": group}
    agents.refuses("west", "more than 4 agents", agents.announce, **options)
    options["group"] = [*agents.group, stranger]
    agents.refuses("west", "more than 4 agents", agents.announce, **options)


@pytest.mark.parametrize("colluders", [1, 2, 3, 9])
def test_beside_the_colluders_there_are_two_agents(agents, colluders):
    """With one colluder in a sum of two agents, the server would learn the other's summand."""
    group = agents.group[-min(4, colluders + 1) :]
    options = {"names": ["west"], "group": group, "colluders": colluders}
    agents.refuses("west", "too few for a sum with", agents.announce, **options)


def test_one_question_of_a_kind_in_a_round(agents):
    vectors = {"x": np.ones(3)}
    sent, _ = agents.mask("west", agents.announce("complete"), kind="audit", vectors=vectors)
    announced = agents.announce("complete")
    others = {"x": np.ones(3) + 1e-15}
    options = {"kind": "audit", "vectors": others}
    agents.refuses("west", "another question", agents.mask, "west", announced, **options)
    options = {"kind": "audit", "vectors": vectors, "audited": '{"unknown": 3}'}
    agents.refuses("west", "another question", agents.mask, "west", announced, **options)
    again, _ = agents.mask("west", announced, kind="audit", vectors=vectors)
    assert not np.array_equal(again, sent)  # other masks, and the same summand
    agents.mask("west", agents.announce("complete"), kind="gap_term", vectors=others)


def test_one_question_until_the_next_accepted_update(agents):
    """A server that invents rounds gets no more sums from the same states."""
    announced = agents.announce("complete", (0, 1))
    agents.mask("west", announced, (0, 1), "audit")
    options = {"accepted_round": 0}
    announced = agents.announce("complete", (0, 7))
    arguments = "west", announced, (0, 7), "audit"
    agents.refuses("west", "since its last accepted", agents.mask, *arguments, **options)
    agents.mask(*arguments)


def test_the_same_question_again_has_the_same_sum(agents):
    for _ in range(2):
        total, cancels = agents.complete_sum((0, 0))
        assert cancels
        np.testing.assert_array_equal(total, TOTAL)


def test_a_question_is_answered_once_even_after_a_change_at_the_agent(agents):
    """If one owner changes the constraint, the difference of two sums is that change."""
    agents.complete_sum((0, 0))
    options = {"kind": "audit", "summand": SUMMANDS["east"]}
    announced = agents.announce("complete")
    refused = "its answer to audit has changed since it gave one"
    agents.refuses("west", refused, agents.mask, "west", announced, **options)
    agents.mask("west", announced, kind="audit")
    later = agents.announce("complete", (0, 1))
    agents.mask("west", later, (0, 1), **options)  # an update of it was accepted in between


# -- which updates count in sums over the full roster ---------------------------------------------


def test_all_agents_of_a_sum_commit_it_or_none(agents):
    """If south alone is told that its update did not count, a difference of sums is its update."""
    context, _ = opened(agents, agents.announce(), NAMES)
    for name in NAMES[:3]:
        agents.commit(name, 0, context, NAMES)
    assert not agents.complete_sum((0, 1))[1]
    agents.commit("west", 0, context, NAMES)
    total, cancels = agents.complete_sum((0, 1))
    assert cancels
    np.testing.assert_array_equal(total, TOTAL)


def test_agents_that_were_asked_different_things_do_not_commit_the_same(agents):
    """All but west compute an empty update: the difference of two sums would be west's."""
    announced = agents.announce()
    contexts = {name: agents.mask(name, announced, step=1e-200)[1] for name in NAMES[:3]}
    contexts["west"] = agents.mask("west", announced, step=1.0)[1]
    for name in NAMES:
        agents.commit(name, 0, contexts[name], NAMES)
    assert not agents.complete_sum((0, 1))[1]
    # Nor can the server name the others' sum, in which west has not been.
    for name, other in (("west", "east"), ("east", "west")):
        refused = "its update of round 0 went into another sum"
        agents.refuses(name, refused, agents.commit, name, 0, contexts[other], NAMES)


def test_agents_that_have_missed_rounds_answer(agents):
    """East misses round 0, north round 1 and all but three round 2."""
    for index, absent in enumerate(("east", "north", "west")):
        place, names = (0, index), [name for name in NAMES if name != absent]
        context, _ = opened(agents, agents.announce(place=place), names, place)
        for name in names:
            agents.commit(name, index, context, names)
    assert agents.complete_sum((0, 3))[1]
    assert agents.complete_sum((0, 3))[1]
    assert {len(history) for history in agents.history.values()} == {3}


def test_the_updates_of_few_agents_do_not_count(agents, tmp_path):
    """A sum of less than t, or of agents that do not exist, would show the update of one."""
    context = agents.train(agents.announce())[1]
    few = f"2 updates count, and {T} must"
    agents.refuses("west", few, agents.commit, "west", 0, context, ["north", "west"])
    for wrong in (
        ["east", "north", "south"],
        ["west", "east", "north"],
        ["invented", "none", "west"],
        ["east", "east", "west"],
    ):
        refused = "list of those whose updates count is not right"
        agents.refuses("west", refused, agents.commit, "west", 0, context, wrong)
    keys = {name: IDENTITIES[name].public for name in NAMES}
    (tmp_path / "minimum").mkdir()
    agents = Agents(tmp_path / "minimum", Roster(keys, colluders=1, minimum=4))
    context = agents.train(agents.announce())[1]
    few = "3 updates count, and 4 must"
    agents.refuses("west", few, agents.commit, "west", 0, context, ["east", "north", "west"])
    agents.commit("west", 0, context, NAMES)


def test_an_opened_sum_counts_with_the_same_agents(agents):
    context, _ = opened(agents, agents.announce(), NAMES)
    refused = "it has opened another sum of this round"
    agents.refuses("west", refused, agents.commit, "west", 0, context, NAMES[1:])
    agents.commit("west", 0, context, NAMES)


def test_another_attempt_of_an_opened_round_does_not_count(agents):
    first = agents.train(agents.announce())[1]
    opened(agents, agents.announce(), NAMES)
    refused = "it has opened another sum of this round"
    agents.refuses("west", refused, agents.commit, "west", 0, first, NAMES)


def test_an_update_can_be_committed_after_later_rounds_were_asked(agents):
    """An agent may die between its answer in a later round and the state with the commit in it."""
    context, _ = opened(agents, agents.announce(), NAMES)
    for index in range(1, 9):
        announced = agents.announce(place=(0, index))
        agents.mask("west", announced, (0, index), accepted_round=0)
    agents.commit("west", 0, context, NAMES)
    agents.mask("west", agents.announce(place=(0, 9)), (0, 9), accepted_round=8)
    with pytest.raises(SecureSumError, match="went into another sum"):
        agents.commit("west", 0, context, NAMES)


# -- rule 6: rounds -------------------------------------------------------------------------------


def test_earlier_rounds_are_over(agents):
    announced = agents.announce()
    _, context = agents.train(announced)
    signatures = agents.signatures(context, NAMES)
    agents.introduction("west", (0, 1))
    over = "a message of a sum that is over"
    agents.refuses("west", over, agents.mask, "west", announced)
    agents.refuses("west", over, agents.confirm, "west", context, NAMES)
    agents.refuses("west", over, agents.introduction, "west")
    arguments = "west", context, NAMES, signatures, announced
    agents.refuses("west", over, agents.unmask, *arguments)
    later = {"place": (0, 1), "purpose": "train 0 0"}
    agents.refuses("west", "not taken part", agents.unmask, *arguments, **later)


def test_an_update_that_was_opened_must_count(agents):
    opened(agents, agents.announce(), NAMES)
    agent = agents["west"]
    agent.check_accepted(message("train", (0, 0)))
    agent.check_accepted(message("train", (0, 1), accepted_round=0))
    agent.check_accepted(message("train", (1, 1)))  # the owner consents to rollbacks elsewhere
    for later in (1, 5):
        with pytest.raises(SecureSumError, match="now the server says that it did not count"):
            agent.check_accepted(message("train", (0, later)))
    fresh = SecureAgent("north", IDENTITIES["north"], agents.folder / "none.json")
    fresh.check_accepted(message("train", (0, 4)))


@pytest.mark.parametrize("change", [{"training": "another"}, {"m": 3}, {"m": 5}])
def test_messages_of_other_trainings(agents, change):
    announced = agents.announce()
    refused = "its secrets are for 'a test', not for this"
    agents.refuses("west", refused, agents.mask, "west", announced, **change)
    with pytest.raises(SecureSumError, match=refused):
        agents["west"].introduce(message("introduce", **change))


# -- keys -----------------------------------------------------------------------------------------


def introduced(folder, name, identity, training="a test"):
    """Return the introduction of an agent with some key."""
    agent = SecureAgent(name, identity, folder / f"{name} {training} again.json")
    found = agent.introduce(message("introduce", training=training))["introduction"]
    return json.loads(found)


def with_member(agents, name, introduction):
    return [introduction if each[0] == name else each for each in agents.group]


def test_keys_of_known_agents_do_not_change(agents, tmp_path):
    agents.announce()
    other = introduced(tmp_path, "east", IDENTITIES["stranger"])
    options = {"names": ["west"], "group": with_member(agents, "east", other)}
    agents.refuses("west", "key of east is not the one that is known", agents.announce, **options)
    unsigned = [*agents.group[0][:2], other[2], agents.group[0][3]]
    options["group"] = with_member(agents, "east", unsigned)
    agents.refuses("west", "keys of east are not signed", agents.announce, **options)
    elsewhere = introduced(tmp_path, "east", IDENTITIES["east"], "another")
    options["group"] = with_member(agents, "east", elsewhere)
    agents.refuses("west", "keys of east are not signed", agents.announce, **options)


def test_two_names_have_two_keys(agents, tmp_path):
    """One colluder with two names would count twice."""
    other = introduced(tmp_path, "north", IDENTITIES["east"])
    options = {"names": ["west"], "group": with_member(agents, "north", other)}
    agents.refuses("west", "two names have the same key", agents.announce, **options)


def test_a_group_has_the_agent_itself_and_nobody_twice(agents):
    for group in (agents.group[:3], [*agents.group, agents.group[0]], [*agents.group[:3]] * 2):
        options = {"names": ["west"], "group": group}
        agents.refuses("west", "group for shares is not right", agents.announce, **options)


def test_the_roster_of_the_owner_decides(tmp_path):
    keys = {name: IDENTITIES[name].public for name in NAMES}
    agents = Agents(tmp_path, Roster(keys, colluders=1))
    # Even the first key that it hears of must be that of the roster.
    other = introduced(tmp_path, "east", IDENTITIES["stranger"])
    options = {"names": ["west"], "group": with_member(agents, "east", other)}
    agents.refuses("west", "key of east is not the one that is known", agents.announce, **options)
    stranger = introduced(tmp_path, "stranger", IDENTITIES["stranger"])
    options["group"] = with_member(agents, "east", stranger)
    agents.refuses("west", "stranger is not in the roster", agents.announce, **options)
    opened(agents, agents.announce(), NAMES)


def test_a_server_can_not_lower_the_number_of_colluders(tmp_path):
    """With fewer colluders t is smaller, and so many agents of a coalition could open a sum."""
    keys = {name: IDENTITIES[name].public for name in NAMES}
    agents = Agents(tmp_path, Roster(keys, colluders=2))
    refused = "roster of its owner has more colluders"
    agents.refuses("west", refused, agents.announce, names=["west"], colluders=1)
    announced = agents.announce(colluders=2)
    agents.refuses("west", refused, agents.mask, "west", announced)
    agents.mask("west", announced, colluders=2)


def with_minimum(folder, minimum):
    """Return agents whose owners ask for so many agents in a sum."""
    keys = {name: IDENTITIES[name].public for name in NAMES}
    return Agents(folder, Roster(keys, 1, minimum=minimum))


def test_the_owners_minimum_holds_for_the_group_that_shares_secrets(tmp_path):
    for minimum in (3, 4):
        agents = with_minimum(tmp_path / str(minimum), minimum)
        options = {"names": ["west"], "group": agents.group[1:]}
        if minimum == 3:
            agents.announce(**options)
        else:
            agents.refuses("west", "too few for a sum", agents.announce, **options)


def test_the_owners_minimum_holds_for_the_participants(tmp_path):
    for minimum in (3, 4):
        agents = with_minimum(tmp_path / str(minimum), minimum)
        announced = agents.announce()
        del announced["east"]
        if minimum == 3:
            agents.mask("west", announced)
        else:
            agents.refuses("west", "too few for a sum", agents.mask, "west", announced)


def test_the_owners_minimum_holds_for_the_survivors(tmp_path):
    for minimum in (3, 4):
        agents = with_minimum(tmp_path / str(minimum), minimum)
        _, context = agents.train(agents.announce())
        if minimum == 3:
            agents.confirm("west", context, NAMES[1:])
        else:
            refused = "3 agents are in the sum, and 4 must be"
            agents.refuses("west", refused, agents.confirm, "west", context, NAMES[1:])


def test_a_number_of_colluders_is_not_negative(agents):
    agents.refuses("west", "colluders", agents.announce, names=["west"], colluders=-3)


# -- malformed messages ---------------------------------------------------------------------------

WRONG = ["", "null", "3", "[", "{}", "[]", '["a"]', "[[]]", '{"a": 1}', "[1, 2, 3, 4]", "[{}]"]
WRONG += ['"text"', "[" * 5000, "[null]", '[["a", "b", "c", "d"]]', '{"west": 3}', "NaN"]


def malformed(good):
    """Yield a message with one field missing or wrong at a time."""
    for key, value in good.metadata.items():
        yield {k: v for k, v in good.metadata.items() if k != key}
        if isinstance(value, str) and value[:1] in "[{":
            yield from ({**good.metadata, key: wrong} for wrong in WRONG)
        elif isinstance(value, str):
            yield from ({**good.metadata, key: wrong} for wrong in ("", "zz", "é" * 9, -1))
        elif key in ("m", "round", "rollbacks", "colluders"):
            yield from (
                {**good.metadata, key: wrong} for wrong in ("x", "", -5, math.nan, math.inf)
            )


def check_malformed(agents, handle, good, optional=()):
    """Check that an agent refuses each wrong message; return how many there were."""
    count = 0
    for metadata in malformed(good):
        changed = {k for k in good.metadata if metadata.get(k) != good.metadata[k]}
        if changed <= {"accepted_round", "grid", *optional}:
            continue
        before = agents.contents("west")
        with pytest.raises(SecureSumError):
            handle(Message(good.kind, metadata))
        assert agents.contents("west") == before
        count += 1
    return count


def test_malformed_requests_for_keys(agents):
    asked = message("announce", group=json.dumps(agents.group), next_place="0 0")
    # Without a group there are secrets for complete sums only; any text is a place.
    wrong = [each for each in malformed(asked) if "group" in each]
    assert len(wrong) > 20
    good = Message("announce", asked.metadata)
    text = good.metadata["group"]
    for value in WRONG:
        before = agents.contents("west")
        with pytest.raises(SecureSumError):
            agents["west"].announce(Message("announce", {**good.metadata, "group": value}))
        assert agents.contents("west") == before
    huge = json.dumps([json.loads(text)[0]] * 10_000)
    with pytest.raises(SecureSumError, match="group for shares"):
        agents["west"].announce(Message("announce", {**good.metadata, "group": huge}))


def test_malformed_participants(agents):
    announced = agents.announce()
    listed = [each.public for each in announced.values()]
    good = message("train", participants=json.dumps(listed))

    def handle(asked):
        return agents["west"].mask(asked, SUMMANDS["west"])

    assert check_malformed(agents, handle, good) > 20
    for field in listed[0]:
        for value in (None, 3, "", "zz", [], {}, "00" * 32, "é"):
            wrong = [{**listed[0], field: value}, *listed[1:]]
            before = agents.contents("west")
            with pytest.raises(SecureSumError):
                handle(message("train", participants=json.dumps(wrong)))
            assert agents.contents("west") == before
    huge = json.dumps(listed * 2_000)
    agents.refuses("west", "an agent is there twice", handle, message("train", participants=huge))
    handle(good)


def test_malformed_requests_to_sign_and_to_open(agents):
    announced = agents.announce()
    _, context = agents.train(announced)
    asked = agents.asked("confirm", context, NAMES)
    assert check_malformed(agents, agents["west"].confirm, asked, {"colluders"}) > 20
    signatures = agents.signatures(context, NAMES)
    shares = {name: each.shares["west"] for name, each in announced.items()}
    texts = {"signatures": json.dumps(signatures), "shares": json.dumps(shares)}
    asked = agents.asked("unmask", context, NAMES, **texts)
    assert check_malformed(agents, agents["west"].unmask, asked, {"shares", "colluders"}) > 40
    for wrong in (3, None, [], "zz", "é"):
        text = json.dumps({**signatures, "east": wrong, "north": wrong})
        with pytest.raises(SecureSumError):
            agents["west"].unmask(agents.asked("unmask", context, NAMES, signatures=text))
    huge = [*NAMES, *(f"z{i}" for i in range(20_000))]
    agents.refuses("west", "is not right", agents.confirm, "west", context, huge)


def test_wrong_shares_open_nothing(agents):
    announced = agents.announce()
    _, context = agents.train(announced)
    signatures = agents.signatures(context, NAMES)
    for wrong in (3, None, [], "zz", "ab" * 48, {"west": "ab"}):
        text = json.dumps(dict.fromkeys(NAMES, wrong))
        options = {"shares": text}
        found = agents.unmask("west", context, NAMES, signatures, announced, **options)
        assert found == ({}, {})
