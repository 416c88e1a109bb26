"""Sums of many sites that no one can open alone."""

from __future__ import annotations

from predbayes_study.extra import Extra

extra = Extra("predbayes_study.extras.sealed", commands={"holder": "command:app"})
