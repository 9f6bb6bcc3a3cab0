"""Finding things in a plotly figure."""


def traces(fig, **wanted):
    return [t for t in fig.data if all(getattr(t, key) == value for key, value in wanted.items())]


def one(fig, **wanted):
    (found,) = traces(fig, **wanted)
    return found


def note(fig, name):
    return " ".join(a.text for a in fig.layout.annotations if a.name == name)
