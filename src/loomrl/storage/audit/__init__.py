"""The audit log: hash-chained segments, how they are written, sealed, compacted, verified and anchored."""
