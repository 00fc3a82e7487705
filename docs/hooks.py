"""MkDocs hooks: add files from outside docs/, insert tables of keys, convert formulas to MathML."""

import html
import re
import unicodedata
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from pcfed.config.json_schema import keys_markdown

ROOT = Path(__file__).parent.parent
OUTSIDE = ("C*.md", "SECURITY.md", "benchmarks/*.md", "benchmarks/*/*.png", "examples/*.ipynb")
"""Files that pages link to outside docs/; the site needs copies of them."""

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
NAME = re.compile(r"<mo>([a-z]+|/|&#x0002F;)</mo>")
"""Function names and slashes, around which browsers leave too much space."""

VARIANT = re.compile(r'<mi mathvariant="(bold|double-struck)">(\w)</mi>')
"""Letter variants that browsers support only as Unicode characters."""

KEYS = re.compile(r"<!-- keys: (\w+) -->.*?<!-- end -->", re.DOTALL)
"""Placeholder for the table of all keys of a configuration file."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files from outside docs/, and a page with the source of every example."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted(ROOT.glob("examples/*.py")):
        page = f"# {path.name}\n\n```python\n{path.read_text('utf-8')}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the tables of keys, and make links across docs/ point to the site's copies."""
    markdown = KEYS.sub(lambda found: keys_markdown(found[1]), markdown)
    if "/" not in page.file.src_uri:
        markdown = markdown.replace("](../", "](").replace("](docs/", "](")
    else:
        markdown = markdown.replace("](../docs/", "](../")
    return re.sub(r"\]\((examples/\w+)\.py\)", r"](\1.md)", markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert formulas to MathML, which browsers render without a script."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    """Return one formula as MathML; raise an error for an unknown LaTeX command."""
    formula = html.unescape(found[2]).strip().replace(r"\arg", r"\operatorname{arg}")
    if found[1] == "div":
        formula = re.sub(r"\\(min|max)_", r"\\\1\\limits_", formula)
    display = "block" if found[1] == "div" else "inline"
    mathml = convert(formula, display=display).replace(r"\_", "_")
    if "\\" in mathml or "<mi>&</mi>" in mathml:
        raise PluginError(f"docs: no MathML for {formula}: {mathml}")
    mathml = mathml.replace("<mi>&#x003A0;", '<mi mathvariant="normal">&#x003A0;')  # the projection
    mathml = NAME.sub(r'<mo lspace="0" rspace="0.1em">\1</mo>', mathml)
    mathml = VARIANT.sub(lambda letter: f"<mi>{_character(*letter.groups())}</mi>", mathml)
    return f'<div class="formula">{mathml}</div>' if found[1] == "div" else mathml


def _character(variant: str, letter: str) -> str:
    """Return the bold or double-struck form of a letter."""
    name = f"{variant.upper()} {'CAPITAL' if letter.isupper() else 'SMALL'} {letter.upper()}"
    try:
        return unicodedata.lookup(f"MATHEMATICAL {name}")
    except KeyError:  # ℝ and some other letters have irregular names
        return unicodedata.lookup(name)
