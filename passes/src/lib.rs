//! Pass manager, optimizations, fusion, splitter, destination passing, buffer planner, plan checker.
