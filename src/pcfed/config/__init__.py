"""The files that users write: a pydantic model for each, with its types, limits and defaults.

A key of a file is described once, as a field of a model. The checks and their error messages
(`pcfed.config.validation_errors`), the JSON schema for editors and the reference of all keys
(`pcfed.config.json_schema`) are derived from it.
"""

from pcfed.extras import require

require(__name__, "app", "pydantic")
