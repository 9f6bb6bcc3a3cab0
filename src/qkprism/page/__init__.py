"""Pages that a person opens: they read results and run no model."""
