"""Whatever is wrong with a configuration or its data is said in one sentence that names it."""

from __future__ import annotations

import pytest

from tests.training.folders import (
    NORTH,
    OWN_CONFIG,
    SHARED,
    SHARED_CONFIG,
    setup_in,
    without_intercept,
)


def shared(before: str, after: str) -> dict[str, str]:
    """The configuration with one file for all, changed in one place."""
    assert before in SHARED_CONFIG
    return {"config": SHARED_CONFIG.replace(before, after)}


def more(text: str) -> dict[str, str]:
    """The same with more at its end."""
    return {"config": SHARED_CONFIG + text}


def own(before: str, after: str) -> dict[str, str]:
    """The configuration with a file an agent, changed in one place."""
    assert before in OWN_CONFIG
    return {"config": OWN_CONFIG.replace(before, after)}


def rows(before: str, after: str) -> dict[str, str]:
    """One file for all, changed in one place."""
    assert before in SHARED
    return {"all": SHARED.replace(before, after, 1)}


def north(text: str | bytes) -> dict[str, str | bytes]:
    """A file an agent, with another one of north."""
    return {"config": OWN_CONFIG, "north": text}


CONFIGS = {
    "no toml": ({"config": "[model\nkind"}, r"must be TOML, got .*at line 1, column 7"),
    "key twice": (more("[model]\n"), r"must be TOML, got Cannot declare .*at line 12"),
    "no text": ({"config": b"[model]\n\xff"}, "must be UTF-8 text, got the byte 0xff in line 2"),
    "empty": ({"config": ""}, "model.kind is missing; give one of softmax, logistic, least-squar"),
    "no model": (shared('[model]\nkind = "softmax"', ""), r"model.kind is missing; give one of so"),
    "section": (more("[trainig]\n"), r"the file has no key 'trainig'; did you mean 'training'\?"),
    "section number": ({"config": "model = 3"}, "model must be a table, got 3"),
    "key": (more("[training]\nround = 3"), r"training has no key 'round'; did you mean 'rounds'\?"),
    "keys": (more("[training]\nzzz = 3"), "no key 'zzz'; valid keys are rounds, local_steps, bat"),
    "kind": (shared('"softmax"', '"sofmax"'), "model.kind must be one of .* got 'sofmax'; did you"),
    "kind number": (shared('"softmax"', "1"), "model.kind must be one of .* got 1"),
    "intercept": (
        shared('"softmax"', '"softmax"\nintercept = 1'),
        "model.intercept must be true or false, got 1",
    ),
    "l2": (shared('"softmax"', '"softmax"\nl2 = -1'), "model.l2 must be a number ≥ 0, got -1"),
    "l2 nan": (
        shared('"softmax"', '"softmax"\nl2 = nan'),
        "model.l2 must be a number ≥ 0, got nan",
    ),
    "file only": (shared('agent = "home"', ""), "given together, got only data.file; give data.ag"),
    "agent only": (
        shared('file = "all.csv"', ""),
        "given together, got only data.agent; give data",
    ),
    "no target": (shared('target = "load"', ""), "data.target is missing"),
    "target number": (shared('"load"', "7"), "data.target must be a non-empty string, got 7"),
    "target agent": (
        shared('"load"', '"home"'),
        "data.target and data.agent must be different columns, got 'ho",
    ),
    "features text": (
        shared('"load"', '"load"\nfeatures = "area"'),
        "data.features must be a list of names, got 'area'",
    ),
    "features twice": (
        shared('"load"', '"load"\nfeatures = ["area", "area"]'),
        "data.features must be different names, got 'area' 2 times",
    ),
    "features target": (
        shared('"load"', '"load"\nfeatures = ["load"]'),
        "data.features must contain neither the target nor the agent, got 'load'",
    ),
    "features unknown": (
        shared('"load"', '"load"\nfeatures = ["aera"]'),
        r"all.csv: there must be a column 'aera', got 'home', .*; did you mean 'area'\?",
    ),
    "held out": (
        shared('"load"', '"load"\nheld_out = 1.0'),
        r"held_out must be a number in \[0, 1\), got 1",
    ),
    "dtype": (shared('"load"', '"load"\ndtype = "float16"'), "data.dtype must be one of float64, "),
    "no agents": ({"config": 'model.kind = "softmax"'}, "agents are missing; give one table"),
    "algorithm name": (
        more('[algorithm]\nname = "FedAgv"'),
        r"algorithm.name must be one of .* got 'FedAgv'; did you mean 'FedAvg'\?",
    ),
    "exact of FedAvg": (
        more('[algorithm]\nname = "FedAvg"\nexact = true'),
        "algorithm has no key 'exact'; valid keys are name, step, penalty",
    ),
    "step": (
        more('[algorithm]\nname = "PCFedAvg"\nstep = 0'),
        'algorithm.step must be a number > 0 or "auto" or "theory", got 0',
    ),
    "step word": (
        more('[algorithm]\nname = "FedAvg"\nstep = "atuo"'),
        r"algorithm.step must be .*mean 'auto'\?",
    ),
    "step theory": (
        more('[algorithm]\nname = "Local"\nstep = "theory"'),
        "algorithm.step must be a number > 0 or \"auto\", got 'theory'",
    ),
    "step of PCFedSplit": (
        more("[algorithm]\nstep = 0.1"),
        "algorithm has no key 'step' if name is 'PCFedSplit', the default; remove it, or choose",
    ),
    "exact": (
        more("[algorithm]\nexact = true"),
        "algorithm has no key 'exact' any more; give name = \"PCFedSplit\", which replaces it, and",
    ),
    "prox zero": (more("[algorithm]\nprox = 0"), 'algorithm.prox must be a number > 0 or "auto"'),
    "prox word": (more('[algorithm]\nprox = "aut"'), r"got 'aut'; did you mean 'auto'\? Give one"),
    "relaxation": (
        more("[algorithm]\nrelaxation = 3"),
        r"algorithm.relaxation must be a number in \(0, 2\), got 3; give one such as 1.8",
    ),
    "relaxation nan": (
        more("[algorithm]\nrelaxation = nan"),
        r"must be a number in \(0, 2\), got n",
    ),
    "prox of FedProx": (
        more('[algorithm]\nname = "FedProx"\nprox = "auto"'),
        "algorithm.prox must be a number ≥ 0, got 'auto'; give one such as 0.1",
    ),
    "prox": (
        more('[algorithm]\nname = "FedProx"'),
        "algorithm.prox is missing; give a number ≥ 0 such as 0.1",
    ),
    "rounds": (more("[training]\nrounds = 0"), "training.rounds must be an integer ≥ 1, got 0"),
    "rounds float": (more("[training]\nrounds = 1.5"), "training.rounds must be an integer"),
    "rounds true": (more("[training]\nrounds = true"), "training.rounds .* got True"),
    "rounds huge": (
        more(f"[training]\nrounds = 0x{'f' * 9999}"),
        "training.rounds .* too large to",
    ),
    "gap": (more("[training]\ngap = 0"), "training.gap must be a number > 0, got 0"),
    "batch": (more("[training]\nbatch = 1.5"), r"training.batch must be a float in \(0, 1\] or an"),
    "batch large": (more("[training]\nbatch = 9"), "training.batch .* got 9 but north trains on 2"),
    "participation": (more("[training]\nparticipation = 3"), "participation .* got 3 of 2"),
    "seed": (more("[training]\nseed = -1"), "training.seed must be an integer ≥ 0, got -1"),
    "norm limit": (
        more("[training]\nnorm_limit = inf"),
        "training.norm_limit must be a number > 0",
    ),
    "defaults": (
        more("[defaults]\nfile = 'a.csv'"),
        "defaults has no key 'file'; valid keys are c",
    ),
    "constraint": (shared("l1 = 5", "l11 = 5"), "agents.north.constraint: parse_set: 'l11' is not"),
    "radius": (shared("l1 = 5", "l1 = -5"), "agents.north.constraint: L1Ball: radius must be ≥ 0"),
    "set of another length": (
        shared("{l1 = 5}", "{box = [[0, 0], [1, 1]]}"),
        "agents.north: Box: the set has 2 entries, but the model of 'area', 'rooms' has 4",
    ),
    "empty set": (
        shared("{l1 = 5}", '"intersection(l1(1), hyperplane([1, 1, 1, 1], 9))"'),
        "agents.north: Intersection: the set is empty",
    ),
    "coupling": (
        shared("{l1 = 5}", "{l1 = 5}\ncoupling = -1"),
        'north.coupling must be a number ≥ 0 or "auto", got -1',
    ),
    "agents list": (
        {"config": 'model.kind = "softmax"\nagents = [1]'},
        "agents must be a table, got",
    ),
    "agent number": (
        {"config": 'model.kind = "softmax"\nagents.a = 1'},
        "agents.a must be a table",
    ),
    "agent name": (shared("agents.north", 'agents." "'), "the name of an agent must be 1 to 80"),
    "agent batch": (shared("{l1 = 5}", "{l1 = 5}\nbatch = 3"), "agents.north has no key 'batch'"),
    "agent without rows": (
        shared("agents.north", "agents.nort"),
        r"agents.nort must have rows in .*all.csv, got none; did you mean 'north'\?",
    ),
    "agent with both": (
        shared("{l1 = 5}", "{l1 = 5}\nfile = 'north.csv'"),
        "agents.north.file must be left out where .* has rows of the agent, got 'north.csv'",
    ),
    "agent without file": (own('file = "south.csv"', ""), "agents.south.file is missing"),
    "agent without target": (own('target = "load"', ""), "agents.north.target is missing; give it"),
    "agent target": (
        own('"south.csv"', '"south.csv"\ntarget = "laod"'),
        r"south.csv: there must be a column 'laod', .* did you mean 'load'\?",
    ),
    "agent target feature": (
        shared("{l1 = 5}", '{l1 = 5}\ntarget = "home"'),
        "agents.north.target must be neither among data.features nor data.agent, got 'home'",
    ),
    "no such file": (own("south.csv", "gone.csv"), "gone.csv: there must be a file, got none here"),
    "folder": (own("south.csv", "../x.csv/"), "x.csv: there must be a file"),
    "suffix": (
        own("south.csv", "train.toml"),
        "data files must end in .csv, .npz, .parquet, got '.t",
    ),
    "parquet": (own("south.csv", "south.parquet"), "south.parquet: there must be a file"),
}

DATA = {
    "empty file": (north(""), "north.csv: the file must have columns, got an empty one"),
    "no rows": (
        north("area,rooms,load\n"),
        "north.csv: the table must have rows, got only a head",
    ),
    "one row": (north("area,rooms,load\n1,2,3\n"), "agents.north must have at least 2 rows, got 1"),
    "ragged": (north(NORTH + "\n1,2\n"), "must have 3 entries like the header, got 2 in line 7"),
    "name twice": (north("a,a\n1,2\n"), "north.csv: column names must differ, got 'a' 2 times"),
    "no name": (
        north("a,,b\n1,2,3\n"),
        "north.csv: every column must have a name, .* for column 2",
    ),
    "decimal comma": (
        north("area;rooms;load\n1,5;2;3\n2;2;4\n"),
        "'area' must be numbers, got '1,5' in line 2; write 1.5, or set data.decimal = \",\" in",
    ),
    "date": (
        north("area,rooms,load\n2024-03-01,2,3\n2024-03-02,2,4\n"),
        "'area' must be numbers, got '2024-03-01' in line 2; write dates as numbers, such as days",
    ),
    "quotes": (north('a,b\n1,"2\n'), "north.csv: the file must be CSV, got unexpected end of data"),
    "bytes": (north(b"a,b\n1,\xe4\n"), "north.csv: the file must be UTF-8 .* byte 0xe4 in line 2"),
    "missing": (
        north(NORTH + "7,,3\n"),
        "'rooms' must have a value in every row, got none in line 6",
    ),
    "not available": (
        north(NORTH + "7,n/a,3\n"),
        "'rooms' must have a value .* line 6; fill it in",
    ),
    "nan": (
        north(NORTH + "7,nan,3\n"),
        "'rooms' must have a value in every row, got none in line 6",
    ),
    "inf": (north(NORTH + "7,-inf,3\n"), "'rooms' must be finite, got -inf in line 6"),
    "text": (
        north(NORTH + "7,many,3\n"),
        "'rooms' must be numbers, got 'many' in line 6; encode categories as numbers, which",
    ),
    "text in target": (north(NORTH + "7,1,high\n"), "'load' must be numbers, got 'high' in line 6"),
    "underscore": (north(NORTH + "7,1_0,3\n"), "'rooms' must be numbers, got '1_0' in line 6"),
    "large": (north(NORTH + "7,1e200,3\n"), r"'rooms' must stay below 1e\+150, got 1e\+200"),
    "float32": (
        {
            "config": OWN_CONFIG.replace('target = "load"', 'target = "load"\ndtype = "float32"'),
            "north": "area,rooms,load\n1,1e100,3\n2,1e100,4\n",
        },
        "agents.north: LeastSquares: X must be finite in float32, got inf at row 0, column 1",
    ),
    "zeros": (
        {
            "config": f'{without_intercept(OWN_CONFIG)}[algorithm]\nname = "FedAvg"\n',
            "north": "a,load\n0,1\n0,2\n",
            "south": "a,load\n0,1\n0,2\n",
        },
        "algorithm: run: step must be a number for losses without a known smoothness",
    ),
    "column less": (
        north("area,load\n1,2\n1,2\n"),
        "same columns, got no 'rooms' with 'north', which 'south' has; add them, or list",
    ),
    "column more": (
        north("area,rooms,wind,load\n1,2,3,4\n1,2,3,4\n"),
        "same columns, got no 'wind' with 'south', which 'north' has",
    ),
    "no features": (
        {"all": "home,load\nnorth,a\nnorth,b\n"},
        "there must be columns besides the target and the agent, got 'home', 'load'",
    ),
    "agent missing": (rows("south", ""), "column 'home' must have a value in every row, .* line 5"),
    "agent long": (rows("south", "s" * 99), "the name of an agent must be 1 to 80 printable"),
    "agent column": (shared('"home"', '"hom"'), r"must be a column 'hom', .*did you mean 'home'\?"),
    "label missing": (rows("1,2,a", "1,2,"), "column 'load' must have a value .* line 2"),
    "one label": ({"all": SHARED.replace(",b", ",a")}, "must be two labels or more, got only 'a'"),
    "labels with points": (
        {"all": SHARED.replace(",b", ",1.5").replace(",a", ",1")},
        r"'load' must be labels for softmax, .* got 1.5 in line 3; did you mean kind = \"least-squ",
    ),
    "labels beyond floats": (
        {"all": SHARED.replace(",b", ",1e17").replace(",a", ",1")},
        r"'load' must be labels for softmax, integers or text, got 1e\+17 in line 3",
    ),
    "many labels": (
        {"all": "home,area,load\n" + "".join(f"north,{i},{i}\n" for i in range(1001))},
        r"softmax takes at most 1000 labels, got 1001; did you mean model.kind = \"least-squares\"",
    ),
    "three labels": (
        {**shared('"softmax"', '"logistic"'), **rows("1,2,a", "1,2,c")},
        "logistic takes at most 2 labels, got 'a', 'b', 'c'; take model.kind = \"softmax\"",
    ),
}


def check_sentences(error: ValueError) -> None:
    """One sentence, or one a line for the errors of a configuration, each of readable length."""
    lines = str(error).split("\n")
    assert lines == [*getattr(error, "sentences", lines[:1])]
    for line in lines:
        assert len(line) <= 400
        assert line.isprintable()
        assert line.endswith((".", "?"))


@pytest.mark.parametrize("name", [*CONFIGS, *DATA])
def test_one_sentence(name, tmp_path):
    files, expected = (CONFIGS | DATA)[name]
    with pytest.raises(ValueError, match=expected) as caught:
        setup_in(tmp_path, **files)
    check_sentences(caught.value)


def test_the_cases_have_different_names():
    assert not CONFIGS.keys() & DATA.keys()
