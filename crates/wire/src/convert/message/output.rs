//! The output of user code, and the drivers that it is shown to.

use crate::convert::field::{present, required};
use crate::v1::{self, show_output::To, source::Kind};
use marline_core::Error;
use marline_core::output::{AttributedOutput, Audience, OutputSource, PrintedLines, StdStream};

impl From<OutputSource> for v1::Source {
    fn from(source: OutputSource) -> v1::Source {
        let kind = match source {
            OutputSource::Task(attempt) => Kind::Task(attempt.into()),
            OutputSource::Actor(instance) => Kind::Actor(instance.into()),
        };
        v1::Source { kind: Some(kind) }
    }
}

impl TryFrom<v1::Source> for OutputSource {
    type Error = Error;
    fn try_from(wire: v1::Source) -> Result<OutputSource, Error> {
        Ok(match present(wire.kind, "Source.kind")? {
            Kind::Task(attempt) => OutputSource::Task(attempt.try_into()?),
            Kind::Actor(instance) => OutputSource::Actor(instance.try_into()?),
        })
    }
}

impl From<Audience> for v1::ShowOutput {
    fn from(audience: Audience) -> v1::ShowOutput {
        let to = match audience {
            Audience::Nobody => To::Nobody(v1::Nothing {}),
            Audience::Me => To::Me(v1::Nothing {}),
            Audience::OfSource(source) => To::Source(source.into()),
        };
        v1::ShowOutput { to: Some(to) }
    }
}

impl TryFrom<v1::ShowOutput> for Audience {
    type Error = Error;
    fn try_from(wire: v1::ShowOutput) -> Result<Audience, Error> {
        Ok(match present(wire.to, "ShowOutput.to")? {
            To::Nobody(v1::Nothing {}) => Audience::Nobody,
            To::Me(v1::Nothing {}) => Audience::Me,
            To::Source(source) => Audience::OfSource(source.try_into()?),
        })
    }
}

pub(crate) fn printed(source: OutputSource, output: PrintedLines) -> v1::Printed {
    v1::Printed {
        source: Some(source.into()),
        pid: output.pid,
        error: output.stream == StdStream::Err,
        text: output.text.map(|text| text.to_string()),
        dropped: output.dropped,
        missed: output.missed,
    }
}

/// Decodes what [`printed`] encoded.
pub(crate) fn decode_printed(wire: v1::Printed) -> Result<(OutputSource, PrintedLines), Error> {
    let output = PrintedLines {
        pid: wire.pid,
        stream: if wire.error { StdStream::Err } else { StdStream::Out },
        text: wire.text.map(Into::into),
        dropped: wire.dropped,
        missed: wire.missed,
    };
    Ok((required(wire.source, "Printed.source")?, output))
}

impl From<AttributedOutput> for v1::Shown {
    fn from(shown: AttributedOutput) -> v1::Shown {
        v1::Shown {
            printed: Some(printed(shown.source, shown.output)),
            name: shown.name.to_string(),
            hostname: shown.hostname.to_string(),
        }
    }
}

impl TryFrom<v1::Shown> for AttributedOutput {
    type Error = Error;
    fn try_from(wire: v1::Shown) -> Result<AttributedOutput, Error> {
        let (source, output) = decode_printed(present(wire.printed, "Shown.printed")?)?;
        Ok(AttributedOutput {
            source,
            name: wire.name.into(),
            hostname: wire.hostname.into(),
            output,
        })
    }
}
