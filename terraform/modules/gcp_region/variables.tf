variable "name" {
  description = "Name of the job in this project, `<job>-<uid>`: part of the name of everything the module makes."
  type        = string

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,39}[a-z0-9])?$", var.name))
    error_message = "name must be 1 to 41 lower-case letters, digits or hyphens, and start with a letter."
  }
}

variable "project" {
  description = "Project id."
  type        = string

  validation {
    condition     = can(regex("^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project must be a project id, not its name or number."
  }
}

variable "region" {
  description = "Region, e.g. `us-central1`."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must look like us-central1."
  }
}

variable "zones" {
  description = "Zones that a machine may be in; empty: all of the region."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for zone in var.zones : can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", zone))])
    error_message = "zones must look like us-central1-a."
  }
}

variable "network" {
  description = "`default`: the project's default network. `own`: a network made here, with one subnetwork."
  type        = string
  default     = "default"

  validation {
    condition     = contains(["default", "own"], var.network)
    error_message = "network must be \"default\" or \"own\"."
  }
}

variable "subnet_cidr" {
  description = "Address range of an own network's subnetwork."
  type        = string
  default     = "10.73.0.0/20"

  validation {
    condition     = can(cidrhost(var.subnet_cidr, 0)) && can(regex("^[0-9.]+/(1[2-9]|2[0-8])$", var.subnet_cidr))
    error_message = "subnet_cidr must be an IPv4 range between /12 and /28."
  }
}

variable "ssh_cidr" {
  description = "Addresses that may reach port 22; null: nobody. Failover itself never connects to a machine."
  type        = string
  default     = null

  validation {
    condition     = var.ssh_cidr == null || can(cidrhost(coalesce(var.ssh_cidr, "!"), 0))
    error_message = "ssh_cidr must be a range of addresses such as 203.0.113.7/32."
  }

  validation {
    condition     = !strcontains(coalesce(var.ssh_cidr, "-"), ":")
    error_message = "ssh_cidr must be IPv4: the machines have no IPv6 address."
  }

  validation {
    condition     = try(tonumber(split("/", coalesce(var.ssh_cidr, "x/32"))[1]), 32) >= 8
    error_message = "ssh_cidr must not open port 22 to the world: at least /8."
  }
}

variable "bucket" {
  description = "Bucket that holds the job's store, with uniform bucket-level access; null: the store is not in GCS, and the account reaches nothing."
  type        = string
  default     = null

  validation {
    condition     = var.bucket == null || can(regex("^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$", coalesce(var.bucket, "!")))
    error_message = "bucket must be the name of a Cloud Storage bucket."
  }
}

variable "prefix" {
  description = "The job's prefix in the bucket, without a slash at either end: all that the account can reach."
  type        = string
  default     = ""

  validation {
    condition     = !can(regex("['\"\\\\[:cntrl:]]|^/|/$|//", var.prefix))
    error_message = "prefix must not contain quotes or backslashes (they end a text in a condition), nor empty parts."
  }
}

variable "service_account" {
  description = "E-mail of the account that machines run as; null: one is made here. A given one is left as it is."
  type        = string
  default     = null

  validation {
    condition = var.service_account == null || can(
      regex("^[^@[:space:]]+@[^@[:space:]]+\\.gserviceaccount\\.com$", coalesce(var.service_account, "!"))
    )
    error_message = "service_account must be the e-mail of a service account."
  }
}

variable "image" {
  description = "Machine image with GPU driver and container engine: `projects/P/global/images/NAME` or `.../images/family/NAME`."
  type        = string
  default     = "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-nvidia-570"

  validation {
    condition     = can(regex("^[a-z0-9][A-Za-z0-9._/:-]{2,254}$", var.image))
    error_message = "image must look like projects/P/global/images/NAME or projects/P/global/images/family/NAME."
  }
}
