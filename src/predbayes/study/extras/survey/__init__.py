"""What sites tell of their columns before a plan is frozen, and what follows from it."""

from __future__ import annotations

from predbayes.study.extra import Extra

extra = Extra("predbayes.study.extras.survey")
