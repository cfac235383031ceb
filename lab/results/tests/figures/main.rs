//! Figures that must come out: the published tables with their errors, the golden vectors of the
//! models, results of other programs, and fio itself.

mod anomalies;
mod fio_itself;
mod golden;
mod imports;
