#!/usr/bin/env python3
"""Examines the checker itself: tools/with_torch 'python3 -B tools/train_image/checker_test.py'."""

import dataclasses
import random
import unittest

import torch

import checker
import drawing
import scenes
import words

PICTURES = 4_000
BATCH = 250


def changed(claim, rng):
    """Returns the claim with one attribute changed, so that it is no longer true."""
    ways = ["colour", "shape", "size", "ground", "place", "relation", "count"]
    for way in rng.sample(ways, len(ways)):
        at = rng.randrange(len(claim.things))
        thing = claim.things[at]

        def other(values, value):
            return rng.choice([candidate for candidate in values if candidate != value])

        if way == "colour" and thing.colour:
            thing = dataclasses.replace(thing, colour=other(words.COLOURS, thing.colour))
        elif way == "shape":
            thing = dataclasses.replace(thing, shape=other(words.SHAPES, thing.shape))
        elif way == "size" and thing.size:
            thing = dataclasses.replace(thing, size=other(words.SIZES, thing.size))
        elif way == "ground" and claim.ground:
            return dataclasses.replace(claim, ground=other(words.GROUNDS, claim.ground))
        elif way == "place" and claim.place:
            return dataclasses.replace(claim, place=other(words.PLACES, claim.place))
        elif way == "relation" and claim.relations:
            i, relation, j = claim.relations[0]
            return dataclasses.replace(claim, relations=((i, other(words.RELATIONS, relation), j),) + claim.relations[1:])
        elif way == "count":
            things = claim.things[:-1] if len(claim.things) > 1 and rng.random() < 0.5 else claim.things + claim.things[:1]
            return dataclasses.replace(claim, things=things, relations=(), place=None)
        if thing is not claim.things[at]:
            return dataclasses.replace(claim, things=claim.things[:at] + (thing,) + claim.things[at + 1 :])
    raise AssertionError("a claim without attributes")


class Checker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        kinds = ["known"] * 8 + ["H1", "H2", "H3", "H4", "H5", "H6", "H7"]
        cls.scenes = [scenes.scene(random.Random(f"checker {at}"), kinds[at % len(kinds)]) for at in range(PICTURES)]
        cls.seen = cls.look(lambda pictures: pictures)

    @classmethod
    def look(cls, spoil):
        parts = [cls.scenes[begin : begin + BATCH] for begin in range(0, PICTURES, BATCH)]
        return [checker.look(levels) for part in parts for levels in drawing.levels(spoil(drawing.draw(part)))]

    def rate(self, claims, seen):
        """Returns the share of pictures that the checker calls right."""
        return sum(checker.judge(ground, found, claim)["all"] for (ground, found), claim in zip(seen, claims)) / len(claims)

    def test_true_drawings_are_right(self):
        self.assertGreaterEqual(self.rate([scene.claim for scene in self.scenes], self.seen), 0.999)

    def test_true_drawings_are_right_with_noise(self):
        generator = torch.Generator().manual_seed(1)
        noisy = lambda pictures: pictures + torch.randn(pictures.shape, generator=generator) * 6 / 255  # noqa: E731
        self.assertGreaterEqual(self.rate([scene.claim for scene in self.scenes], self.look(noisy)), 0.999)

    def test_everything_that_was_drawn_is_found(self):
        complete = [dataclasses.replace(scene.claim, things=scene.things, ground=scene.ground) for scene in self.scenes]
        self.assertGreaterEqual(self.rate(complete, self.seen), 0.999)

    def test_captions_with_one_attribute_changed_are_rejected(self):
        rng = random.Random(2)
        claims = [changed(scene.claim, rng) for scene in self.scenes]
        self.assertLessEqual(self.rate(claims, self.seen), 0.001)

    def test_noise_and_empty_pictures_are_wrong(self):
        claims = [scene.claim for scene in self.scenes[:20]]
        for pictures in (torch.rand(20, 64, 64, 3), torch.zeros(20, 64, 64, 3), torch.ones(20, 64, 64, 3) * 0.5):
            self.assertFalse(any(verdict["all"] for verdict in checker.check(drawing.levels(pictures), claims)))

    def test_exchanged_things_are_reported_as_swapped(self):
        thing = scenes.Thing("red", "circle", "medium"), scenes.Thing("blue", "square", "medium")
        claim = scenes.Claim("related", thing, relations=((0, "left", 1),))
        scene = scenes.Scene("", claim, "white", thing[::-1], ((16.0, 32.0, 10.0), (44.0, 32.0, 10.0)))
        verdict = checker.check(drawing.levels(drawing.draw([scene])), [claim])[0]
        self.assertTrue(verdict["swapped"])
        self.assertFalse(verdict["all"])


class Splits(unittest.TestCase):
    def test_the_training_never_draws_a_held_out_combination(self):
        for at in range(3000):
            scene = scenes.scene(random.Random(f"split {at}"))
            self.assertEqual(set(), scenes.held_out(scene.claim, scene.ground, scene.things))
            self.assertNotRegex(scene.caption, "picture with|drawing with| on a picture|of an? .* there is")

    def test_each_split_has_only_its_own_combinations(self):
        for wanted in ("H1", "H2", "H3", "H4", "H5", "H7"):
            for at in range(100):
                scene = scenes.scene(random.Random(at), wanted)
                self.assertEqual({wanted}, scenes.held_out(scene.claim, scene.ground, scene.things))

    def test_captions_have_only_known_words(self):
        for at in range(3000):
            self.assertEqual(words.TEXT_LENGTH, len(words.encode(scenes.scene(random.Random(at)).caption)))


class Words(unittest.TestCase):
    def test_an_unknown_word_is_an_error_that_names_the_nearest_ones(self):
        with self.assertRaisesRegex(words.UnknownWord, '"sqare".*square, squares'):
            words.encode("a red sqare")
        with self.assertRaises(words.UnknownWord):
            words.encode("a <pad> circle")

    def test_punctuation_and_capitals_do_not_matter(self):
        self.assertEqual(words.encode("a red circle on a dark gray background"), words.encode("A red circle, on a DARK-gray background!"))

    def test_a_long_caption_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "24 words"):
            words.encode("red " * 24)


if __name__ == "__main__":
    torch.set_num_threads(1)  # more wait for each other beside other work
    unittest.main()
