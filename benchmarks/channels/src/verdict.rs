//! Compares ours with the rivals: the best lossless rival, the ratio to it, and the
//! goal of that ratio. `report.rs` and `json.rs` print it.

use crate::shapes::FLOOR;
use crate::tournament::{Cell, Measured};

pub const OURS: &str = "marline";
pub const WITHOUT_METRICS: &str = "marline without metrics";

/// The rival that loses values when a receive is cancelled. It is shown, but never the best rival.
pub const LOSSY: &str = "kanal";

/// The least ratio to a rival of the same kind.
const GOAL: f64 = 0.8;
/// The least ratio to a rival that is built for one producer or one consumer only.
const GOAL_SPECIALISED: f64 = 0.6;
/// The least ratio to ours without metrics, which should be nearly free.
const GOAL_METRICS: f64 = 0.9;
/// The least ratio to the floor: at most twice its time.
const GOAL_FLOOR: f64 = 0.5;

pub struct Verdict {
    pub shape: String,
    pub against: String,
    pub rival: f64,
    pub ours: Option<f64>,
    pub goal: f64,
}

impl Verdict {
    /// Returns how many times faster ours is.
    pub fn ratio(&self) -> Option<f64> {
        self.ours.map(|ours| self.rival / ours)
    }

    pub fn missed(&self) -> bool {
        self.ratio().is_some_and(|ratio| ratio < self.goal)
    }
}

impl Measured {
    pub fn cell(&self, name: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.name == name)
    }

    pub fn nanoseconds(&self, name: &str) -> Option<f64> {
        self.cell(name)?.nanoseconds()
    }

    pub fn is_floor(&self) -> bool {
        self.shape.contains("/floor/")
    }

    pub fn is_metrics(&self) -> bool {
        self.shape.contains("/metrics ")
    }

    /// Compares with the fastest rival that lost nothing here and is not known to lose values.
    pub fn verdict(&self) -> Option<Verdict> {
        let (rival, against) = self
            .cells
            .iter()
            .filter(|cell| self.may_be_best(cell))
            .filter_map(|cell| Some((cell.nanoseconds()?, cell)))
            .min_by(|left, right| left.0.total_cmp(&right.0))?;
        Some(Verdict {
            shape: self.shape.clone(),
            against: against.name.into(),
            rival,
            ours: self.nanoseconds(OURS),
            goal: match against.name {
                WITHOUT_METRICS => GOAL_METRICS,
                _ if against.specialised => GOAL_SPECIALISED,
                _ => GOAL,
            },
        })
    }

    fn may_be_best(&self, cell: &Cell) -> bool {
        if self.is_metrics() {
            return cell.name == WITHOUT_METRICS;
        }
        let ours = cell.name.starts_with(OURS);
        !ours && cell.name != LOSSY && cell.name != FLOOR && cell.unaccounted() == 0
    }

    pub fn ratio_to_lossy(&self) -> Option<f64> {
        Some(self.nanoseconds(LOSSY)? / self.nanoseconds(OURS)?)
    }

    /// Compares with the floor, if it took part.
    pub fn floor_verdict(&self) -> Option<Verdict> {
        let rival = self.nanoseconds(FLOOR)?;
        let ours = self.nanoseconds(OURS);
        (!self.is_floor()).then(|| Verdict {
            shape: format!("{}, against the floor", self.shape),
            against: FLOOR.into(),
            rival,
            ours,
            goal: GOAL_FLOOR,
        })
    }
}

pub fn geometric_mean(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    let logarithms: Vec<f64> = ratios.map(f64::ln).collect();
    let count = logarithms.len() as f64;
    (count > 0.0).then(|| (logarithms.iter().sum::<f64>() / count).exp())
}
