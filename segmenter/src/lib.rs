//! The SQL session: views, functions and, later, the batch planner.
