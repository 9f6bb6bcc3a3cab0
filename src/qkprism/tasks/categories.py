"""The thirteen categories that lists are made of, and which of them share members."""

from __future__ import annotations

from dataclasses import dataclass

from qkprism.contrasts.words import check_words, words


@dataclass(frozen=True, slots=True)
class Category:
    """A category by the name it is asked for, its items, and the categories that an item of it may also belong to."""

    name: str
    items: tuple[str, ...]
    near: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_words((self.name, *self.items), f"the category {self.name!r}")


CATEGORIES = {
    category.name: category
    for category in (
        Category("fruits", words("fruits"), near=("foods",)),
        Category("animals", words("animals"), near=("birds",)),
        Category("vehicles", words("vehicles")),
        Category("drinks", words("drinks"), near=("liquids", "foods")),
        Category("countries", words("countries")),
        Category("US states", words("us_states")),
        Category("cities", words("cities")),
        Category("male names", words("male_names")),
        Category("female names", words("female_names")),
        Category("birds", words("birds"), near=("animals", "foods")),
        Category("foods", words("foods"), near=("fruits", "drinks", "birds", "liquids")),
        Category("liquids", words("liquids"), near=("drinks", "foods")),
        Category("jobs", words("jobs")),
    )
}
