//! The laboratory: plans, runs by fio, reports.
