"""Full conformal sets by kernel ridge regression, in closed form. Needs no PyTorch.

A new image is added to the labelled ones with each possible class in turn, and each image is scored by the fit to all
others. If new images are drawn as the labelled ones were, the rank of the new one is uniform: a class is in the set
unless the image is among the strangest with it. No image is set aside for that.
"""

import numpy as np


class RidgeSets:
    """Logits scale * (z + weight * correction), z the cosines with class texts.

    The correction is kernel ridge regression of 1 for the own class, 0 for others, minus z, on exp(-beta (1 - cosine)).
    The score of an image is the probability of its own class.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, text: np.ndarray, *settings: float) -> None:
        """`images` [images, dim], `labels` [images], `text` [classes, dim]; then beta, ridge, weight and scale."""
        self.images, self.labels, self.text = images.astype(float), labels, text.astype(float)
        self.beta, ridge, self.weight, self.scale = settings
        cosines = self.images @ self.text.T  # [images, classes]
        residuals = np.eye(len(text))[labels] - cosines
        self.inverse = np.linalg.inv(self._kernel(self.images) + ridge * np.eye(len(labels)))
        self.dual, self.diagonal = self.inverse @ residuals, np.diag(self.inverse)
        self.constant, self.ridge = cosines + self.weight * residuals, ridge

    def _kernel(self, features: np.ndarray) -> np.ndarray:
        return np.exp(self.beta * (features @ self.images.T - 1))

    def p_values(self, features: np.ndarray) -> np.ndarray:
        """The p-value of each class for features [batch, dim], [batch, classes]."""
        return np.stack([self._p_values(x) for x in features.astype(float)])

    def _p_values(self, x: np.ndarray) -> np.ndarray:
        """The p-values [classes] of one image [dim], whose addition changes the inverse by a term of rank one.

        In the column of a class its target is 1 - z if the class is assumed, else -z: for each class assumed, the
        left-out logits of the labelled images differ from those with no class in that column alone.
        """
        kernel, z = self._kernel(x[None])[0], self.text @ x
        along = self.inverse @ kernel  # [images]
        schur = np.exp(self.beta * (x @ x - 1)) + self.ridge - kernel @ along
        prediction = kernel @ self.dual  # [classes]
        step = along / schur / (self.diagonal + along**2 / schur)
        dual = self.dual / (self.diagonal + along**2 / schur)[:, None]
        logits = self.constant - self.weight * (dual + step[:, None] * (z + prediction))  # of no class
        top = logits.max(1, keepdims=True) + np.maximum(0, self.weight * step)[:, None]
        none = np.exp(self.scale * (logits - top))
        assumed = np.exp(self.scale * (logits + self.weight * step[:, None] - top))  # in the column of that class
        rows = np.arange(len(none))
        own = np.repeat(none[rows, self.labels][:, None], len(z), 1)
        own[rows, self.labels] = assumed[rows, self.labels]
        scores = own / (none.sum(1, keepdims=True) - none + assumed)  # [images, assumed class]
        new = self.scale * (z + self.weight * prediction)
        new = np.exp(new - new.max())
        return (1 + (scores <= new / new.sum()).sum(0)) / (len(rows) + 1)
