from flide_jax.drawing.figures.style import Picture


def texts(picture: Picture) -> list[str]:
    """All that stands in the panels of a picture, without titles and axes."""
    return [text.get_text() for axes in picture.figure.axes for text in axes.texts]
