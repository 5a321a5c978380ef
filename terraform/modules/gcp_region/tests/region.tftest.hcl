mock_provider "google" {
  mock_data "google_compute_network" {
    defaults = { self_link = "https://compute/v1/projects/my-project/global/networks/default" }
  }

  mock_data "google_compute_subnetwork" {
    defaults = { self_link = "https://compute/v1/projects/my-project/regions/us-central1/subnetworks/default" }
  }

  mock_resource "google_service_account" {
    defaults = {
      email  = "fo-1a2b3c4d@my-project.iam.gserviceaccount.com"
      member = "serviceAccount:fo-1a2b3c4d@my-project.iam.gserviceaccount.com"
    }
  }
}

variables {
  name    = "digits-1a2b3c4d"
  project = "my-project"
  region  = "us-central1"
  bucket  = "my-checkpoints"
  prefix  = "jobs/digits"
}

run "as_designed" {
  command = apply

  assert {
    condition = (
      google_compute_firewall.closed.direction == "INGRESS" &&
      one(google_compute_firewall.closed.deny).protocol == "all" &&
      google_compute_firewall.closed.source_ranges == toset(["0.0.0.0/0"]) &&
      google_compute_firewall.closed.priority < 1000
    )
    error_message = "Everything that comes in is refused, before any rule of the default network counts."
  }

  assert {
    condition     = google_compute_firewall.closed.target_tags == toset([output.network_tag])
    error_message = "The rule is for machines with the tag that the module names."
  }

  assert {
    condition     = length(google_compute_firewall.ssh) == 0 && length(google_compute_network.own) == 0
    error_message = "No way in, and no network of its own."
  }

  assert {
    condition = google_storage_bucket_iam_member.store[0].condition[0].expression == join(" || ", [
      "resource.name.startsWith('projects/_/buckets/my-checkpoints/objects/jobs/digits/')",
      "api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('jobs/digits/')",
    ])
    error_message = "The account must reach the job's prefix and nothing else."
  }

  assert {
    condition     = startswith(google_service_account.node[0].account_id, "fo-1a2b3c4d-")
    error_message = "The account is found by the job's id."
  }
}

run "the_longest_name_that_fits" {
  command = plan

  variables {
    name     = "a-job-with-a-name-of-thirty-two-1a2b3c4d9"
    region   = "northamerica-northeast2"
    network  = "own"
    ssh_cidr = "203.0.113.7/32"
  }

  assert {
    condition = (
      length(google_compute_firewall.closed.name) <= 63 && length(google_compute_firewall.ssh[0].name) <= 63 &&
      length(google_compute_network.own[0].name) <= 63 && length(google_service_account.node[0].account_id) <= 30
    )
    error_message = "Google takes names of 63 characters, accounts of 30."
  }

  assert {
    condition     = google_compute_subnetwork.own[0].ip_cidr_range == "10.73.0.0/20"
    error_message = "An own network has one subnetwork."
  }
}

run "no_bucket_no_reach" {
  command = plan

  variables {
    bucket = null
  }

  assert {
    condition     = length(google_storage_bucket_iam_member.store) == 0 && length(google_service_account.node) == 1
    error_message = "Without a bucket the account reaches nothing."
  }
}

run "an_account_of_the_operators_own" {
  command = plan

  variables {
    service_account = "trainer@my-project.iam.gserviceaccount.com"
  }

  assert {
    condition = (
      length(google_service_account.node) == 0 && length(google_storage_bucket_iam_member.store) == 0 &&
      output.service_account == "trainer@my-project.iam.gserviceaccount.com"
    )
    error_message = "A given account is taken as it is."
  }
}

run "ssh_from_one_address" {
  command = plan

  variables {
    ssh_cidr = "203.0.113.7/32"
  }

  assert {
    condition = (
      google_compute_firewall.ssh[0].source_ranges == toset(["203.0.113.7/32"]) &&
      google_compute_firewall.ssh[0].priority < google_compute_firewall.closed.priority
    )
    error_message = "SSH is open to the operator alone."
  }
}

run "ssh_open_to_the_world_otherwise_spelt" {
  command = plan

  variables {
    ssh_cidr = "203.0.113.7/0"
  }

  expect_failures = [var.ssh_cidr]
}

run "ssh_to_an_address_that_no_machine_has" {
  command = plan

  variables {
    ssh_cidr = "2001:db8::/64"
  }

  expect_failures = [var.ssh_cidr]
}

run "prefix_that_ends_the_text_of_the_condition" {
  command = plan

  variables {
    prefix = "jobs/') || true || ('"
  }

  expect_failures = [var.prefix]
}

run "prefix_missing" {
  command = plan

  variables {
    prefix = ""
  }

  expect_failures = [google_storage_bucket_iam_member.store]
}
