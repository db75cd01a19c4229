"""A comparison as one self-contained HTML page: tables, charts, and every sample's trace to step through."""
