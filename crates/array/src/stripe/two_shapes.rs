//! Two shapes of one array at once, and the frontier between them.

use std::cell::Cell;
use std::rc::Rc;

use voltier_parity::{Code, CodeError};

use crate::format::reshape_record::ReshapeRecord;
use crate::geometry::numbers::{Row, Section};
use crate::geometry::shapes::Shapes;
use crate::stripe::fence::Fence;

/// The shapes of an array during a capacity expansion.
pub(crate) struct TwoShapes {
    shapes: Shapes,
    /// The code of the old one.
    code: Code,
    /// Requests find the sections below in the new one.
    frontier: Cell<Section>,
    /// The record that the members are to have.
    record: Cell<ReshapeRecord>,
    fence: Rc<Fence>,
}

impl TwoShapes {
    /// # Errors
    /// When there is no code for the old shape.
    pub(crate) fn new(shapes: Shapes, record: ReshapeRecord) -> Result<Self, CodeError> {
        let code = Code::new(shapes.before.data_chunks(), shapes.before.parity_chunks())?;
        let (frontier, record) = (Cell::new(record.frontier), Cell::new(record));
        Ok(Self { shapes, code, frontier, record, fence: Rc::default() })
    }

    pub(crate) fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// The code of the old shape.
    pub(crate) fn code(&self) -> &Code {
        &self.code
    }

    pub(crate) fn frontier(&self) -> Section {
        self.frontier.get()
    }

    pub(crate) fn set_frontier(&self, frontier: Section) {
        self.frontier.set(frontier);
    }

    pub(crate) fn record(&self) -> ReshapeRecord {
        self.record.get()
    }

    pub(crate) fn set_record(&self, record: ReshapeRecord) {
        self.record.set(record);
    }

    pub(crate) fn fence(&self) -> &Rc<Fence> {
        &self.fence
    }

    /// Whether a row holds nothing, or is of a section that has neither shape.
    pub(crate) fn is_idle_row(&self, row: Row) -> bool {
        let frontier = self.frontier.get();
        let next = if self.record.get().is_between() { frontier + 1 } else { frontier };
        (self.shapes.new_rows(frontier)..self.shapes.old_rows(next)).contains(&row)
    }
}
