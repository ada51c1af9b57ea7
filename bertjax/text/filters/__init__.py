"""Filters: documents that `prepare` leaves out, because of their quality or because they are copies (data.filters)."""
