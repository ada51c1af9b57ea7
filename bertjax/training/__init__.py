"""Objectives, train step, optimizer, schedules, stages and evaluation."""
