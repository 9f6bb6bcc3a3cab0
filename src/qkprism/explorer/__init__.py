"""The explorer: a page that one clicks, served on this computer alone."""
