"""Errors of the service, with the statuses that the SDK translates into its own exceptions."""

from __future__ import annotations

from grpclib import GRPCError, Status


def not_found(what: str) -> GRPCError:
    return GRPCError(Status.NOT_FOUND, f"{what} not found")


def invalid(message: str) -> GRPCError:
    return GRPCError(Status.INVALID_ARGUMENT, message)


def exists(message: str) -> GRPCError:
    return GRPCError(Status.ALREADY_EXISTS, message)


def conflict(message: str) -> GRPCError:
    return GRPCError(Status.FAILED_PRECONDITION, message)


def unauthenticated(message: str) -> GRPCError:
    return GRPCError(Status.UNAUTHENTICATED, message)
