//! Converts amounts of resources, and grants. An amount from the wire that is negative or too large
//! is rejected.

use super::field::required;
use crate::v1;
use marline_core::Error;
use marline_core::account::Grant;
use marline_core::resources::{Amount, Resources};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The largest amount of a resource that a message may name. Resource accounts add amounts up and
/// must not overflow.
const MAX_AMOUNT: Amount = Amount::whole(u32::MAX);

type Custom = BTreeMap<Arc<str>, Amount>;

impl From<Resources> for v1::Resources {
    fn from(resources: Resources) -> v1::Resources {
        let custom = resources.custom.iter().flat_map(|custom| custom.iter());
        v1::Resources {
            cpu: resources.cpu.0,
            gpu: resources.gpu.0,
            memory_bytes: resources.memory,
            custom: custom.map(|(name, amount)| (name.to_string(), amount.0)).collect(),
        }
    }
}

impl TryFrom<v1::Resources> for Resources {
    type Error = Error;
    fn try_from(wire: v1::Resources) -> Result<Resources, Error> {
        Ok(Resources {
            cpu: amount(wire.cpu, "Resources.cpu")?,
            gpu: amount(wire.gpu, "Resources.gpu")?,
            memory: wire.memory_bytes,
            custom: custom(wire.custom)?,
        })
    }
}

fn custom(wire: HashMap<String, i64>) -> Result<Option<Arc<Custom>>, Error> {
    if wire.is_empty() {
        return Ok(None);
    }
    let named = wire.into_iter().map(|(name, ten_thousandths)| {
        let amount = amount(ten_thousandths, &format!("Resources.custom[{name:?}]"))?;
        Ok((name.into(), amount))
    });
    named.collect::<Result<_, Error>>().map(|custom| Some(Arc::new(custom)))
}

fn amount(ten_thousandths: i64, field: &str) -> Result<Amount, Error> {
    let amount = Amount(ten_thousandths);
    if amount < Amount::ZERO || amount > MAX_AMOUNT {
        return Err(Error::invalid(format!(
            "{field} is {ten_thousandths} ten-thousandths; expected 0 to {}",
            MAX_AMOUNT.0
        )));
    }
    Ok(amount)
}

impl From<Grant> for v1::Grant {
    fn from(grant: Grant) -> v1::Grant {
        v1::Grant { resources: Some(grant.resources.into()), gpus: grant.gpus }
    }
}

impl TryFrom<v1::Grant> for Grant {
    type Error = Error;
    fn try_from(wire: v1::Grant) -> Result<Grant, Error> {
        Ok(Grant { resources: required(wire.resources, "Grant.resources")?, gpus: wire.gpus })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(wire: v1::Resources) -> String {
        Resources::try_from(wire).unwrap_err().message().to_owned()
    }

    #[test]
    fn negative_and_absurd_amounts_are_rejected_by_name() {
        let words = refused(v1::Resources { cpu: -1, ..Default::default() });
        assert_eq!(words, "Resources.cpu is -1 ten-thousandths; expected 0 to 42949672950000");
        let words = refused(v1::Resources { gpu: i64::MAX, ..Default::default() });
        assert!(words.starts_with("Resources.gpu is 9223372036854775807 "), "{words}");
        let custom = HashMap::from([("disk".to_owned(), -7)]);
        let words = refused(v1::Resources { custom, ..Default::default() });
        assert!(words.starts_with("Resources.custom[\"disk\"] is -7 "), "{words}");
    }

    #[test]
    fn the_largest_amounts_round_trip() {
        let most = Resources::cpus(u32::MAX).with_memory(u64::MAX).with_custom("x", MAX_AMOUNT);
        assert_eq!(Resources::try_from(v1::Resources::from(most.clone())).unwrap(), most);
    }
}
